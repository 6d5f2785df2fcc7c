"""What is said of a run before its first training step is recorded."""

import pytest

from arpo_verl.records.run import open_run
from arpo_verl.records.runs import RunsFolder
from arpo_verl.records.starting import last_lines, read_start
from arpo_verl.tools.cli.main import main

BEGUN = ["output.log", "starts.jsonl"]


@pytest.mark.parametrize(
    "names, says",
    [
        (["output.log"], "imports the trainer"),
        (BEGUN, "starts Ray"),
        ([*BEGUN, "pool.json"], "boots its desktops"),
        ([*BEGUN, "pool.json", "metrics.jsonl"], "is about to play"),
        ([*BEGUN, "pool.json", "metrics.jsonl", "trajectories/step_000000"], "plays its first episodes"),
        ([*BEGUN, "metrics.part000.jsonl", "trajectories/step_000001"], None),
        (["trajectories/step_000000"], None),
    ],
)
def test_a_run_has_a_phase_until_a_step_of_it_is_recorded(tmp_path, capsys, names, says):
    (tmp_path / "run").mkdir()
    for path in (tmp_path / "run" / name for name in names):
        path.mkdir(parents=True) if "trajectories" in str(path) else path.touch()
    start = read_start(tmp_path / "run")
    assert start is None if says is None else start.phase.startswith(says)
    if says is not None:
        assert main(["summary", str(tmp_path / "run")]) == 0 and f"the run {says}" in capsys.readouterr().out
        assert open_run(tmp_path / "run").snapshot().episodes == ()
        assert RunsFolder(tmp_path).names() == ["run"]


def test_of_the_output_the_last_lines_are_shown_without_what_moves_a_terminal(tmp_path):
    log = tmp_path / "output.log"
    log.write_bytes(b"first\n\x1b[33mwarm\x1b[0m\n 1%\r 2%\nlast\x07\n")
    assert last_lines(log, 3) == ["warm", " 2%", "last"] and last_lines(log, since=6)[0] == "warm"
    start = read_start(tmp_path)
    assert start.lines[-1] == "last" and 0 <= start.quiet_s < 60
    log.write_text("importing\narpo_verl: gui_agent.max_steps must be 1 or more, got 0\n")
    assert read_start(tmp_path).phase.startswith("was refused")
