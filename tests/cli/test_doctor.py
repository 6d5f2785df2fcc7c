"""`arpo-verl doctor --task-dir`: which tasks this machine can run, and what the others lack."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("desktop_env")

from arpo_verl.cli.main import main  # noqa: E402
from arpo_verl.tasks.loader import EMBEDDED_DIR  # noqa: E402
from arpo_verl.versions import TESTED  # noqa: E402

SPEC = {
    "id": "fine",
    "instruction": "Do it.",
    "config": [{"type": "launch", "parameters": {"command": ["sleep", "1"]}}],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["true"]},
        "expected": {"type": "rule", "rules": {"expected": ""}},
    },
}


@pytest.fixture
def task_dir(tmp_path):
    launch = [{"type": "launch", "parameters": {"command": ["no-such-program"]}}]
    tasks = {
        "fine": SPEC,
        "program": {**SPEC, "id": "program", "config": launch},
        "other-program": {**SPEC, "id": "other-program", "config": launch},
        "metric": {**SPEC, "id": "metric", "evaluator": {**SPEC["evaluator"], "func": "exakt_match"}},
    }
    for name, spec in tasks.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(spec))
    (tmp_path / "torn.json").write_text('{"id": "torn", ')
    return tmp_path


def test_each_task_is_named_with_what_is_missing(task_dir, capsys):
    assert main(["doctor", "--task-dir", str(task_dir)]) == 1
    printed = capsys.readouterr().out
    assert "[ok  ] fine\n" in printed and "1 of 5 tasks can run on this machine" in printed
    assert "[FAIL] program\n       -> the program no-such-program (apt-get install no-such-program)" in printed
    assert "torn.json\n       -> not JSON" in printed
    assert "did you mean exact_match?" in printed
    # The summary counts tasks by reason, the most frequent first.
    summary = printed.split("can run on this machine\n")[1].splitlines()
    assert summary[0].split()[0] == "2" and "no-such-program" in summary[0] and len(summary) == 3


def test_the_report_as_json_and_as_tables(task_dir, capsys):
    main(["doctor", "--task-dir", str(task_dir), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [task["task"] for task in report["tasks"] if task["ok"]] == ["fine"]
    assert ["other-program", "program"] in report["reasons"].values()
    main(["doctor", "--task-dir", str(task_dir), "--markdown"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert "| fine | yes |  |" in rows and any("metric.json | no | " in row for row in rows)


def test_a_machine_that_can_run_every_task_passes(capsys):
    assert main(["doctor", "--task-dir", str(EMBEDDED_DIR)]) == 0
    assert "32 of 32 tasks can run" in capsys.readouterr().out


def test_a_virtual_machine_has_the_programs_but_not_the_metrics(task_dir, capsys):
    assert main(["doctor", "--task-dir", str(task_dir), "--provider", "docker"]) == 1
    printed = capsys.readouterr().out
    assert "3 of 5 tasks can run" in printed and "no-such-program" not in printed


def test_a_folder_that_is_not_there_is_named(capsys):
    assert main(["doctor", "--task-dir", "no-such-folder"]) == 2
    assert "no-such-folder" in capsys.readouterr().err


def test_nothing_heavy_is_imported_to_look_at_tasks(task_dir):
    code = (
        "import sys; from arpo_verl.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in ('torch', 'transformers', 'verl', 'ray', 'desktop_env') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "doctor", "--task-dir", str(task_dir)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "[]"


def test_without_tasks_the_machine_is_checked(capsys, monkeypatch):
    from arpo_verl.cli import doctor
    from arpo_verl.cli.checks.finding import Finding

    monkeypatch.setattr(doctor, "check_registrations", lambda: [])  # they import veRL for many seconds
    monkeypatch.setattr(doctor, "check_osworld", lambda: Finding("OSWorld's client", False, "gone", "get it"))
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "[FAIL] OSWorld's client: gone\n       -> get it" in printed
    assert f"[ok  ] verl: {TESTED['verl']}" in printed and "disk" in printed and "KVM" in printed
