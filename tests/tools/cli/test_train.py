"""`arpo-verl train`, with a stand-in for the trainer's process: tests/support/stand_in_trainer.py."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, take_interrupts

from arpo_verl.plugin.resume import ResumeRecord, write_record
from arpo_verl.records.ended_starts import read_faults
from arpo_verl.records.starts import read_starts
from arpo_verl.tools.cli import terminal, train, trainer_process
from arpo_verl.tools.cli.main import main

pytest.importorskip("verl")

FRONT = """
import sys
from arpo_verl.tools.cli import train, trainer_process
from arpo_verl.tools.cli.main import main
train.TRAINER, trainer_process.STOPPING_S = "support.stand_in_trainer", 2.0
trainer_process.POLL_S, trainer_process.KILL_AFTER_S = 0.1, 600.0
sys.exit(main(sys.argv[1:]))
"""
STEPS = [
    "step 1 of 3  success  25.0%  replays 2  faults 1  60 s  2 min left",
    "step 2 of 3  success  50.0%  replays 2  faults 1  60 s  1 min left",
    "step 3 of 3  success  75.0%  replays 2  faults 1  60 s",
]
PATH = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])


def arguments(run_dir, *more):
    return ["train", "demo", f"run_dir={run_dir}", "trainer.total_training_steps=3", *more]


def start(run_dir, ending, *more, **options):
    """The front as a process of its own."""
    env = {**os.environ, "PYTHONPATH": PATH, "STAND_IN": ending, "TERM": "xterm"}
    return subprocess.Popen(
        [sys.executable, "-c", FRONT, *arguments(run_dir, *more)],
        cwd=ROOT,
        env=env,
        text=True,
        preexec_fn=take_interrupts,
        **options,
    )


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The front in this process: its exit status, standard output and standard error."""

    def run(ending, *more, path=PATH):
        monkeypatch.setattr(train, "TRAINER", "support.stand_in_trainer")
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setenv("STAND_IN", ending)
        monkeypatch.delenv("VERL_PLATFORM", raising=False)
        monkeypatch.setattr(terminal.shutil, "which", lambda name: f"/bin/{name}")
        capsys.readouterr()
        return main(arguments(tmp_path / "run", *more)), *capsys.readouterr()

    return run


def test_on_a_pipe_each_step_is_one_line_and_all_else_is_in_the_log(tmp_path, run):
    status, out, err = run("ends")
    folder = tmp_path / "run"
    assert (status, err) == (0, "")
    assert out.splitlines()[:9] == [
        f"run folder   {folder}",
        f"output       {folder}/output.log",
        f"watch it     arpo-verl view {folder}",
        "",
        "host memory  5.1 GB of 25 GB",
        "validation before the first step: success 25.0%",
        *STEPS,
    ]
    assert "noise" not in out and "steps                        3 (60 s each)" in out
    log = (folder / "output.log").read_text()
    assert "noise 99" in log and "platform cpu" in log and "Training Progress: 3/3" in log


def exported(folder, step):
    """A checkpoint with the weights as Transformers loads them."""
    whole = folder / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    whole.mkdir(parents=True)
    (whole / "config.json").write_text("{}")
    (whole / "model.safetensors").write_bytes(b"weights of step %d" % step)
    return whole


def test_a_new_run_begins_with_a_checkpoint_s_weights_and_goes_on_from_its_own(tmp_path, run):
    weights = exported(tmp_path / "first", 7)
    place = tmp_path / "run" / "checkpoints" / "global_step_2"
    status, out, err = run("crashes", "--restarts=0", "--weights-from", str(tmp_path / "first"))
    assert status == 1 and "goes on" not in out
    assert f"model '{weights}'" in (tmp_path / "run" / "output.log").read_text()
    # The stand-in writes no record; the trainer's callback does.
    place.mkdir()
    write_record(place, ResumeRecord((), {"actor_rollout_ref.model.path": json.dumps(str(weights))}))
    status, out, err = run("ends", "--weights-from", str(tmp_path / "first"))
    assert status == 0 and "goes on      after step 2" in out
    exported(tmp_path / "first", 8)
    status, out, err = run("ends", "trainer.total_training_steps=9", "--weights-from", str(tmp_path / "first"))
    assert status != 0 and "run_dir must be the folder of a new run, or of one that began with the weights of" in err


def test_the_weights_folder_may_have_an_apostrophe_but_nothing_that_a_recipe_resolves(tmp_path, run):
    exported(tmp_path / "${oc.env:HOME}", 7)
    status, out, err = run("crashes", "--restarts=0", "--weights-from", str(tmp_path / "${oc.env:HOME}"))
    assert status == 2 and "--weights-from must be a folder without \\ and ${ in its path" in err
    weights = exported(tmp_path / "o'brien", 7)
    assert run("crashes", "--restarts=0", "--weights-from", str(tmp_path / "o'brien"))[0] == 1
    escaped = str(weights).replace("'", "\\'")  # as Hydra takes it
    assert f"model '{escaped}'" in (tmp_path / "run" / "output.log").read_text()


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ("~nobody-of-this-name", "must be a folder, got ~nobody-of-this-name"),
        ("circle", "must be a folder"),
        ("pipe", "must be a folder with a model's config.json and weights"),
        ("empty", "must be a folder with a model's config.json and weights"),
    ],
)
def test_an_odd_weights_folder_is_refused_in_one_sentence(odd, says, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pipe", "empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe" / "model.safetensors")
    (tmp_path / "circle").symlink_to("circle")
    status, out, err = run("crashes", "--restarts=0", "--weights-from", odd)
    assert status == 2 and f"--weights-from {says}" in err and len(err.splitlines()) == 1


def test_weights_from_excludes_a_resume_by_path(tmp_path, run):
    exported(tmp_path / "first", 7)
    resume = (
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={tmp_path}/first/checkpoints/global_step_7",
    )
    status, out, err = run("crashes", "--restarts=0", *resume, "--weights-from", str(tmp_path / "first"))
    assert status == 2 and "trainer.resume_mode must be auto or disable with --weights-from" in err


def test_what_failed_is_shown_with_the_log_s_last_lines(tmp_path, run):
    status, out, err = run("crashes", "--restarts=0")
    assert status == 1
    assert STEPS[1] in out and "steps  " not in out
    shown = err.splitlines()
    assert shown[1] == f"the last lines of {tmp_path}/run/output.log:"
    assert shown[-1].startswith(
        "arpo-verl: the trainer ended with exit status 1 after step 2; all of its output is in "
    )
    assert "RuntimeError: the worker died" in shown, "without what colours a terminal"
    assert "noise 99" in shown and "noise 50" not in shown
    assert len(shown) == 40 + 5
    assert "Training Progress: 2/3" in "".join(shown) and "Training Progress: 1/3\r" not in err


def test_a_trainer_that_a_signal_ended_has_that_status_and_its_last_words(tmp_path, run):
    status, _, err = run("is killed", "--restarts=0")
    assert status == 128 + signal.SIGKILL
    assert "the last words" in err
    assert "SIGKILL ended the trainer (the kernel does that when memory runs out, see `dmesg`) after" in err


def test_a_signal_without_a_name_is_told_by_its_number(tmp_path):
    process = trainer_process.TrainerProcess(["sh", "-c", "kill -40 $$"], tmp_path / "log", {})
    assert process.describe_end() == "signal 40 ended the trainer"


def test_a_refusal_shows_what_this_start_printed_alone(tmp_path, run):
    run("crashes", "--restarts=0")
    status, out, err = run("refused")
    assert status == 1 and "goes on      after step 2" in out
    assert err == "arpo-verl: 2 problems:\n- the recipe cannot run\n- nor this\n", "without what was printed before"


def wait_for_line(front, words):
    for line in front.stdout:
        if words in line:
            return
    raise AssertionError(f"no {words!r} was printed")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release)])
def test_an_interrupted_run_says_how_to_go_on_and_then_does(tmp_path, number):
    with start(tmp_path / "run", "waits", stdout=subprocess.PIPE) as front:
        wait_for_line(front, "step 2 of 3")
        front.send_signal(number)
        rest = front.stdout.read()
    assert front.returncode not in (0, None)
    assert "stopped after step 2; the same command resumes after step 2" in rest and "goes on" not in rest
    with start(tmp_path / "run", "ends", stdout=subprocess.PIPE) as front:
        out = front.stdout.read()
    assert front.returncode == 0
    assert [line for line in out.splitlines() if line.startswith("step ")] == STEPS[2:]


@pytest.mark.release
def test_a_second_ctrl_c_kills_a_trainer_that_does_not_end(tmp_path):
    with start(tmp_path / "run", "ignores", stdout=subprocess.PIPE) as front:
        wait_for_line(front, "step 2 of 3")
        front.send_signal(signal.SIGINT)
        wait_for_line(front, "press Ctrl-C again to kill it")
        front.send_signal(signal.SIGINT)
        front.stdout.read()
    assert front.returncode == 128 + signal.SIGKILL


def test_a_trainer_and_its_workers_end_with_a_front_that_was_killed(tmp_path):
    with start(tmp_path / "run", "waits", stdout=subprocess.PIPE) as front:
        wait_for_line(front, "step 2 of 3")
        log = (tmp_path / "run" / "output.log").read_text()
        started = [os.pidfd_open(int(pid)) for pid in re.search(r"^processes (\d+) (\d+)$", log, re.M).groups()]
        front.kill()
    for pidfd in started:
        ended, _, _ = select.select([pidfd], [], [], 600)
        os.close(pidfd)
        assert ended


def test_ctrl_c_ends_a_trainer_that_hangs_after_its_error_and_shows_the_error(tmp_path):
    with start(tmp_path / "run", "hangs", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as front:
        wait_for_line(front, "step 2 of 3")
        front.send_signal(signal.SIGINT)
        rest = front.stdout.read()
    assert "goes on" not in rest, "a run that somebody ended does not start again"
    assert "RuntimeError: what failed" in rest and "stopped" not in rest and front.returncode == 128 + signal.SIGKILL


FAULT = "The queue's storage died on node 10.0.0.7"


@pytest.mark.parametrize(
    ("endings", "more", "statuses", "says"),
    [
        (
            "loses its head:0,ends",
            [],
            [0, 2],
            "crashed      before its first step: Ray's head (gcs_server) died: the trainer ended with exit status 1",
        ),
        ("fault:0,ends", [], [0, 2], f"crashed      before its first step: {FAULT}"),
        ("is killed,ends", [], [0, 2], "crashed      after step 2: SIGKILL ended the trainer"),
        ("fault,ends", [], [0, 2], "goes on      after step 2, restart 1 of at most 3 in 24 hours\n\nhost memory"),
        ("fault:0", ["--restarts=2"], [1, 3], f"{FAULT}\n\narpo-verl: the run does not start again: 2 starts in a row"),
        ("fault:0,crashes:1,fault:0", ["--restarts=1"], [1, 3], "restart 2 of at most 2"),
        (
            "fault:1,fault:2,fault:3",
            ["--restarts=1", "trainer.total_training_steps=9"],
            [1, 3],
            "did so 2 times in 24 hours",
        ),
        ("fault:3", [], [1, 1], "But it crashed after it had saved the last one"),
        ("crashes:0", [], [1, 1], "exit status 1 before its first step"),
        ("fault", ["--restarts=0"], [1, 1], f"arpo-verl: {FAULT}"),
        ("fault", ["trainer.resume_mode=disable"], [1, 1], f"arpo-verl: {FAULT}"),
        ("lasts", [], [1, 1], f"arpo-verl: {FAULT}"),
        ("fault,refused", [], [1, 1], "arpo-verl: 2 problems:"),
    ],
)
def test_a_crashed_run_starts_again(endings, more, statuses, says, tmp_path, run, monkeypatch):
    """But not what would end in the same way, nor more often than the two limits."""
    monkeypatch.setattr(trainer_process, "RESTARTS_A_DAY", 2)
    status, out, err = run(endings, *more)
    assert [status, len(read_starts(tmp_path / "run"))] == statuses and says in out + err
    assert len(read_faults(tmp_path / "run")) >= statuses[1] - 1, "also the ends that no trainer noted"


def test_a_run_starts_again_once_nothing_of_its_last_start_lives(tmp_path):
    with start(tmp_path / "run", "leaves,ends", stdout=subprocess.PIPE) as front:
        wait_for_line(front, "waits        until the processes of this start have ended")
        assert "noise 0" not in output(tmp_path).partition("processes")[2]
        os.kill(int(re.search(r"^processes \d+ (\d+)$", output(tmp_path), re.M)[1]), signal.SIGKILL)
        wait_for_line(front, "goes on      after step 2, restart 1 of at most 10")
        front.stdout.read()
    assert front.returncode == 0


def output(folder):
    return (folder / "run" / "output.log").read_text()


def test_ctrl_c_ends_the_wait_for_another_start(tmp_path):
    with start(tmp_path / "run", "leaves,ends", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as front:
        wait_for_line(front, "waits        until the processes")
        front.send_signal(signal.SIGINT)
        assert front.stdout.read() == "\narpo-verl: interrupted\n"
    assert front.returncode == 130 and len(read_starts(tmp_path / "run")) == 1


def test_ray_says_that_its_head_is_gone_in_the_words_that_we_look_for():
    compiled = Path(find_spec("ray").origin).parent / "_raylet.so"
    assert trainer_process._HEAD_GONE.encode() in compiled.read_bytes()


def test_what_hangs_of_the_last_start_is_killed(run, monkeypatch):
    monkeypatch.setattr(trainer_process, "KILL_AFTER_S", 0.0)
    assert run("leaves,ends")[0] == 0


CLUSTER = """
from pathlib import Path
def init(address, **options): assert address == "10.0.0.1:6379"
def available_resources():
    with open(f"{__file__}.asked", "a+") as file:
        file.write("x")
        return {"GPU": float(file.tell() > 1)}
"""


def test_on_a_cluster_a_run_waits_for_its_gpus(tmp_path, run, monkeypatch):
    (tmp_path / "ray.py").write_text(CLUSTER)
    monkeypatch.setattr(trainer_process, "POLL_S", 0.1)
    status, out, _ = run(
        "fault,ends", "ray_kwargs.ray_init.address=10.0.0.1:6379", path=f"{PATH}{os.pathsep}{tmp_path}"
    )
    assert status == 0 and "waits        until the Ray cluster answers and has 1 free GPUs\ngoes on" in out


def test_a_finished_run_is_not_started_again(tmp_path, run):
    run("ends")
    before = (tmp_path / "run" / "output.log").read_text()
    status, out, _ = run("crashes", "--restarts=0")
    assert status == 0 and "is finished: it has all 3 steps" in out and f"arpo-verl summary {tmp_path}/run" in out
    assert "a larger trainer.total_training_steps than" in out, "more epochs alone would change nothing"
    assert (tmp_path / "run" / "output.log").read_text() == before
    status, out, _ = run("ends", "trainer.resume_mode=disable")
    assert "is finished" not in out, "a run that does not go on begins anew"


@pytest.mark.release
def test_the_stock_console_comes_back_by_an_option(tmp_path):
    (tmp_path / "run").mkdir()
    with start(tmp_path / "run", "ends", "--console", stdout=subprocess.PIPE) as front:
        out = front.stdout.read()
    assert front.returncode == 0
    assert "noise 99" in out and "logger [console,file,tensorboard]" in out and "step 1 of 3" not in out
    assert not (tmp_path / "run" / "output.log").exists()


def test_a_command_that_is_not_on_the_path_is_shown_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal.shutil, "which", lambda name: None)
    monkeypatch.setattr(terminal.sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert terminal.shown_command("view", tmp_path / "a run") == f".venv/bin/arpo-verl view '{tmp_path}/a run'"
