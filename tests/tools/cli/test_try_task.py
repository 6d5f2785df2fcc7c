"""`arpo-verl try`: one task by hand, with replies from a file, a recorded episode, the expert or a prompt."""

import errno
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from support import take_interrupts
from support.desktop_harness import eventually
from support.task_files import spec, write

from arpo_verl.tools.cli.main import main

HIT = "Thought: I click it.\nAction: click(start_box='(35,38)')"
DONE = "Thought: Done.\nAction: finished()"
FAKE = ["--provider", "fake", "--screen", "640x480"]


@pytest.fixture
def play(tmp_path, capsys):
    """Run the command on the fake desktop; gives its exit status, what it printed, and the recorded episode."""
    write(tmp_path / "task.json", spec(id="click-it", instruction="Click the red square.", config=[]))

    def run(*args, replies=None, task="task.json"):
        if replies is not None:
            (tmp_path / "replies.txt").write_text(replies)
            args = ("--replies", str(tmp_path / "replies.txt"), *args)
        status = main(["try", str(tmp_path / task), *FAKE, "--out", str(tmp_path / "out"), *args])
        printed = capsys.readouterr()
        files = sorted((tmp_path / "out").rglob("episode.json"))
        return status, printed.out + printed.err, files[-1] if files else None

    return run


def test_replies_of_a_file_are_played_evaluated_and_recorded_as_in_a_training_run(play):
    # A reply holds blank lines, so these do not part replies.
    two = "Thought: Twice.\n\nAction: hotkey(key='a')\n\nclick(start_box='(35,38)')"
    status, printed, file = play(replies=f"{two}\n---\n{DONE}\n---\n\n")
    episode = json.loads(file.read_text())
    assert status == 0 and "score 1" in printed and str(file.parent) in printed
    assert "Hotkey(keys=('a',))" in printed and "Click(point=Point(x=35, y=38)" in printed
    assert episode["stop_reason"] == "finished" and episode["success"] == 1.0 and episode["num_turns"] == 2
    assert [turn["text"] for turn in episode["turns"]] == [two, DONE]
    assert len(episode["turns"][0]["actions"]) == 2
    assert {"00.png", "01.png", "episode.json", "final.png"} <= {path.name for path in file.parent.iterdir()}
    assert [path.name for path in file.parents[2].iterdir()] == ["step_000000"]


def test_a_disk_that_is_full_takes_the_record_and_not_the_verdict(play, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "out/episode.json")

    monkeypatch.setattr("arpo_verl.tools.cli.by_hand.write_episode", refuse)
    status, printed, file = play(replies=f"{HIT}\n---\n{DONE}")
    assert status == 2 and "score 1" in printed and "the disk of out/episode.json is full" in printed and file is None


def test_a_malformed_reply_ends_the_episode_as_it_ends_an_agents(play):
    status, printed, file = play(replies=f"{HIT}\n---\nAction: dance()\n---\n{DONE}")
    episode = json.loads(file.read_text())
    assert status == 0 and "unknown action 'dance'" in printed
    assert episode["stop_reason"] == "parse_error" and len(episode["turns"]) == 2
    assert "score 1" in printed, "the desktop's state is what counts"


def test_replies_that_run_out_end_at_the_step_limit(play):
    assert json.loads(play(replies=HIT)[2].read_text())["stop_reason"] == "step_limit"
    _, printed, file = play("--max-steps", "1", replies=f"Action: wait()\n---\n{HIT}\n---\n{DONE}")
    assert json.loads(file.read_text())["num_turns"] == 1 and "score 0" in printed


def test_a_recorded_episode_can_be_played_again_in_its_own_coordinates(play):
    _, _, file = play("--image-size", "364x252", replies=f"Action: click(start_box='(20,20)')\n---\n{DONE}")
    recorded = json.loads(file.read_text())
    assert recorded["image_size"] == [364, 252]
    _, printed, again = play("--replies", str(file))
    assert "Click(point=Point(x=35, y=38)" in printed
    assert untimed(json.loads(again.read_text())["turns"]) == untimed(recorded["turns"])


def untimed(turns):
    """The turns without how long they took."""
    return [{name: value for name, value in turn.items() if not name.endswith("_s")} for turn in turns]


def test_typed_replies_are_asked_for_again_when_malformed(play, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"Action: dance()\n---\n{HIT}\n---\n"))
    status, printed, file = play()
    episode = json.loads(file.read_text())
    assert status == 0 and "unknown action 'dance'" in printed and "newest screenshot is always in" in printed
    assert [turn["text"] for turn in episode["turns"]] == [HIT]
    assert episode["stop_reason"] == "step_limit" and "score 1" in printed


def test_replies_may_be_in_the_grammar_of_another_model(play):
    call = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [55, 80]}}'
    _, printed, file = play("--model-family", "qwen3_vl", replies=f"<tool_call>\n{call}\n</tool_call>")
    assert "Click(point=Point(x=35, y=38)" in printed and json.loads(file.read_text())["success"] == 1.0


def test_an_end_of_input_before_any_reply_is_told(play, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    status, printed, file = play()
    assert status == 2 and "at least one reply" in printed and file is None


def test_a_task_of_ones_own_has_no_expert(play):
    status, printed, _ = play("--expert")
    assert status == 2 and "the expert has no script" in printed


def test_an_infrastructure_fault_is_told_and_evaluated_by_nobody(play):
    status, printed, file = play("--option", 'provider_options={"fail": {"step": [1]}}', replies=HIT)
    assert status == 2 and "scripted failure of step" in printed and file is None and "score" not in printed


@pytest.mark.desktop
def test_the_expert_solves_a_shipped_task_and_the_verdict_says_what_was_seen(tmp_path, capsys):
    assert main(["try", "dialog-confirm-yes", "--expert", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (file,) = tmp_path.rglob("episode.json")
    (call,) = json.loads(file.read_text())["evaluator"]
    assert "score 1" in printed and f"{call['metric']} returned {call['returned']}" in printed
    assert call["result"] in printed and call["expected"] in printed


def x_servers(screen):
    return subprocess.run(["pgrep", "-f", f"^Xvfb .*{screen}"], capture_output=True, text=True).stdout.split()


@pytest.mark.desktop
def test_ctrl_c_at_the_prompt_leaves_nothing_behind(tmp_path):
    # No other desktop's: its X servers can be told from others on this machine, those of another run too.
    screen = f"{1301 + os.getpid() % 256}x{242 + os.getpid() // 256 % 256}"
    command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "try", "dialog-confirm-yes", "--screen", screen]
    command += ["--out", str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=take_interrupts) as process:
        try:
            for line in process.stdout:
                if line.startswith("reply 1"):
                    break
            running = x_servers(screen)
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            status = process.wait(timeout=60)
        finally:
            process.kill()
    assert running and status == 130 and "interrupted" in rest
    eventually(lambda: not x_servers(screen))
    assert list(tmp_path.iterdir()) == []
