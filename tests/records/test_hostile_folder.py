"""A run's folder that somebody else made: links, pipes, screenshots that are none, names as long as may be."""

import json
import os
import re
import threading

import pytest
from support.pictures import png

from arpo_verl.errors import ReplayError
from arpo_verl.records import json_files
from arpo_verl.records.film_strip import Frame, thumbnail
from arpo_verl.records.recorded import read_episodes
from arpo_verl.records.run import open_run
from arpo_verl.records.run_summary import summarize_run
from arpo_verl.records.starts import read_starts

SECRET = "the contents of another's file"


def within_a_minute(function):
    """What `function` returns; a reader that hangs on a pipe is a failure and hangs nobody."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(60)
    assert results, "hung, or raised"
    return results[0]


def read_everything(path):
    run = open_run(path)
    read = [run.episodes(), run.groups(), run.metrics(), run.running(), run.pool(), read_starts(path)]
    try:
        read.extend(read_episodes(path / "trajectories"))
    except ValueError as error:
        read.append(str(error))
    return repr(read)


FILES = ("metrics.jsonl", "starts.jsonl", "pool.json", "trajectories/step_000001/groups.jsonl")
EPISODE_FILES = ("episode.json", "tokens.json", "live.json", "00.png")


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [*FILES, *EPISODE_FILES])
def test_a_link_is_not_followed_and_a_pipe_hangs_nobody(written, tmp_path, name, kind):
    episode = written.trajectories / written.episode(1)
    path = episode / name if name in EPISODE_FILES else written.path / name
    secret = {"task_id": SECRET, "training/global_step": 1, "step": 1, "data": {SECRET: 1.0}, "rows": [], "uid": SECRET}
    (tmp_path / "secret").write_text(json.dumps({**secret, "recipe": {SECRET: 1}, "versions": {}, "time": 1e12}))
    (written.path / "metrics.jsonl").touch()
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "secret")
    assert SECRET not in within_a_minute(lambda: read_everything(written.path))


@pytest.mark.parametrize("name", ["/dev/zero", "../../../secret", "../secret.png", "secret", 1, None, ["00.png"]])
def test_no_path_comes_of_an_episodes_screenshots(written, tmp_path, name):
    """Seeds made of such a record would have held any file of the user's."""
    (tmp_path / "secret").write_text(SECRET)
    written.episode(1, screenshots=1, prompt_tokens=1, response_tokens=1, reward_extra_info={})
    (episode,) = read_episodes(written.trajectories)
    assert len(episode.screenshots) == 1
    edit_episode(written, screenshots=[name])
    told = within_a_minute(lambda: refusal(written.trajectories))
    assert "cannot read the episodes in" in told and SECRET not in told


def refusal(trajectories):
    with pytest.raises(ReplayError) as told:
        list(read_episodes(trajectories))
    return str(told.value)


def edit_episode(written, **changes):
    (path,) = written.trajectories.rglob("episode.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("instruction", None), ("turns", [{"text": 1}]), ("image_size", [1, 2, 3]), ("success", None)],
)
def test_a_recorded_episode_is_typed(written, name, value):
    written.episode(1, screenshots=1, prompt_tokens=1, response_tokens=1, reward_extra_info={})
    edit_episode(written, **{name: value})
    with pytest.raises(ReplayError, match="cannot read the episodes in"):
        list(read_episodes(written.trajectories))


def test_a_log_prob_that_is_no_number_costs_an_episode_its_log_probs_alone(written, caplog):
    """One NaN refused the whole source."""
    place = written.episode(1, screenshots=1, prompt_tokens=1, response_tokens=1, reward_extra_info={})
    file = written.trajectories / place / "tokens.json"
    replies = [{"token_ids": [1, 2], "log_probs": [-0.5, -1.0]}, {"token_ids": [3], "log_probs": [float("nan")]}]
    for text, log_probs in ((json.dumps(replies[:1]), (-0.5, -1.0)), (json.dumps(replies), None)):
        file.write_text(text)
        (episode,) = read_episodes(written.trajectories)
        assert (episode.tokens[0].token_ids, episode.tokens[0].log_probs) == ((1, 2), log_probs)
    assert "no finite number" in caplog.text


def test_s5_endless_numbers_are_none_at_all(written):
    """`report` died on an integer of 400 digits."""
    written.episode(1)
    written.group(1, "u1", {"session": 0, "reward": 1.0, "advantage": 0.5})
    metrics = {"step": 1, "data": {"rollout/success_mean": 1, "timing_s/step": 2}}
    files = {
        written.path / "metrics.jsonl": json.dumps(metrics) + "\n" + json.dumps(metrics).replace(": 1,", ": 2,", 1),
        written.path / "pool.json": json.dumps({"time": 1, "desktops": 3}),
        written.path / "starts.jsonl": json.dumps({"time": 1, "recipe": {"a": 1}, "versions": {}}),
        written.trajectories / "frontier.jsonl": json.dumps(
            {"step": 1, "tasks": [{"task_id": "a", "rate": 1, "low": 0, "high": 1, "share": 1, "drawn": 1}]}
        ),
    }
    for path in (*written.trajectories.rglob("episode.json"), *written.trajectories.rglob("groups.jsonl")):
        files[path] = path.read_text()
    for path, text in files.items():
        path.write_text(text + "\n" + re.sub(r"(?<=: )\d+(\.\d+)?", "9" * 400, text))
    for path in (*written.trajectories.rglob("episode.json"), written.path / "pool.json"):
        path.write_text(path.read_text().split("\n")[1])
    (written.trajectories / ("step_" + "9" * 200)).mkdir()
    run = open_run(written.path)
    (summary,) = run.episodes()
    assert (summary.success, summary.reward, summary.step, summary.wall_s) == (None, None, 1, None)
    assert run.metrics().steps == (1, 2) and run.metrics().column("timing_s/step") == (2, 2)
    assert run.pool() is None and len(run.groups()) == 1 and len(run.frontier()) == 1
    summarize_run(written.path)
    from arpo_verl.tools.viewer.report import write_report

    assert write_report(run, written.path / "report.html") > 0


def test_a_line_of_no_object_is_passed_over_however_long_it_is(written, monkeypatch):
    monkeypatch.setattr(json_files, "MOST_JSON_BYTES", 100)
    lines = [b'{"a": 1}', b"x" * 250, b'{"b": "' + b"y" * 200 + b'"}', b'{"c": 3}', b'{"d":']
    path = written.path / "lines.jsonl"
    path.write_bytes(b"\n".join(lines))
    file = json_files.GrowingFile(path, dict)
    assert file.read_new(lambda: None) == [{"a": 1}, {"c": 3}]
    with path.open("ab") as stream:
        stream.write(b' 4}\n{"e": 5}')
    assert file.read_new(lambda: None) == [{"d": 4}, {"e": 5}]
    assert file.read_new(lambda: None) == []


def test_a_screenshot_as_thin_as_a_hair_is_none():
    for size in ((1, 60000), (2, 3000)):
        small = thumbnail(Frame(png(size=size), ""), 300)
        assert small.height <= 1200
    assert thumbnail(Frame(png(size=(64, 128)), ""), 300).size == (300, 600)


def test_a_report_takes_the_place_of_a_link(written, tmp_path):
    from arpo_verl.tools.viewer.report import write_report

    written.episode(1)
    (tmp_path / "precious").write_text("precious")
    report = written.path / "report.html"
    report.symlink_to(tmp_path / "precious")
    write_report(open_run(written.path), report)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not report.is_symlink() and "<html" in report.read_text()


def test_an_episode_whose_name_leaves_no_room_is_left_out_of_an_export(written, tmp_path):
    from arpo_verl.tools.viewer.export import export_run

    kept = written.episode(1)
    (written.trajectories / written.episode(1, uid="u2")).rename(written.trajectories / "step_000001" / ("n" * 255))
    run = open_run(written.path)
    assert len(run.episodes()) == 2
    export_run(run, run.snapshot(), tmp_path / "export", progress=False)
    assert [path.stem for path in (tmp_path / "export/data/episode/step_000001").iterdir()] == [kept.partition("/")[2]]


def test_half_a_surrogate_pair_is_told_by_its_escape(written):
    pytest.importorskip("pandas")
    written.episode(1, instruction="Do \ud800.")
    frame = open_run(written.path).episodes().to_pandas()
    assert frame.instruction[0] == "Do \\ud800."
    frame.to_csv()
