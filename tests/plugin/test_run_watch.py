"""The thread that ends a run: which deaths count, in real processes, and how it ends this one."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError

from arpo_verl.plugin import run_watch
from arpo_verl.plugin.run_watch import GO_ON, RUN_DIR_VARIABLE, RunWatch, in_words
from arpo_verl.records.ended_starts import read_faults

PATIENCE_S = 600.0
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not find the tests' modules


@ray.remote(num_cpus=0)
class Child:
    def __init__(self, error=None):
        if error is not None:
            raise error

    def pid(self):
        return os.getpid()

    def work(self):
        time.sleep(PATIENCE_S)

    def exit(self):
        ray.actor.exit_actor()

    def have_a_child(self):
        self.child = Child.remote()
        return ray.get(self.child.pid.remote())


def kill(child):
    os.kill(ray.get(child.pid.remote()), signal.SIGKILL)


def kill_its_child(child):
    os.kill(ray.get(child.have_a_child.remote()), signal.SIGKILL)


ASKED_FOR = [ray.kill, lambda child: child.exit.remote(), lambda child: child.work.remote(), kill_its_child]


@ray.remote(num_cpus=0)
class Trainer:
    """Watches as a trainer's process does, and is asked what it found."""

    def __init__(self):
        self.watch = RunWatch(PATIENCE_S)
        self.children = []

    def lose_what_may_go(self):
        """Children that end as somebody asked, one that works, and one whose own child is killed."""
        self.children = [Child.remote() for _ in ASKED_FOR]
        ray.get([child.pid.remote() for child in (*self.children, Child.remote())])  # the last has nobody now
        for child, end in zip(self.children, ASKED_FOR, strict=True):
            end(child)

    def lose(self):
        self.children.append(Child.options(name="a_child").remote())
        kill(self.children[-1])

    def start_in_vain(self):
        self.children.append(Child.remote(ValueError("no weights")))

    def found(self, patience_s=PATIENCE_S):
        deadline = time.monotonic() + patience_s
        while not (sentence := self.watch.find()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sentence


@pytest.fixture
def trainer(local_ray):
    actor = Trainer.remote()
    yield actor
    ray.kill(actor)


def test_only_a_process_of_the_runs_own_that_crashed_ends_it(trainer):
    ray.get(trainer.lose_what_may_go.remote())
    other = Child.remote()  # somebody else's
    kill(other)
    assert ray.get(trainer.found.remote(2.0)) == ""
    ray.get(trainer.lose.remote())
    sentence = ray.get(trainer.found.remote())
    assert sentence.startswith("a_child died (Child, process ") and "SYSTEM_ERROR" in sentence
    assert sentence.endswith(GO_ON) and "\n" not in sentence and len(sentence) < 1000


def test_a_process_that_cannot_start_is_said_with_its_error(trainer):
    ray.get(trainer.start_in_vain.remote())
    assert "ValueError: no weights" in ray.get(trainer.found.remote())


@pytest.fixture
def watch():
    watch = RunWatch(PATIENCE_S)
    del watch.checks[0]  # it asks Ray
    return watch


def test_a_run_in_which_nothing_moves_ends(watch, monkeypatch):
    clock = [time.monotonic()]
    monkeypatch.setattr(run_watch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for seconds, stalls in ((PATIENCE_S - 1, False), (PATIENCE_S + 1, True)):
        watch.moved()
        clock[0] += seconds
        assert ("gui_agent.stall_timeout_s=600" in watch.find()) == stalls


def test_the_first_sentence_ends_the_run_and_a_look_that_fails_does_not(watch, monkeypatch):
    ended, looks = [], iter([ValueError("of Ray"), "", "first", "second"])

    def check():
        look = next(looks)
        if isinstance(look, Exception):
            raise look
        return look

    monkeypatch.setattr(run_watch, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    monkeypatch.setattr(run_watch, "end_process", ended.append)
    watch.checks = [check]
    watch._watch()
    assert ended == ["first"]


@pytest.mark.parametrize(("run_dir", "kind"), [("run", "str"), ("run", "Lasting"), ("file/run", "str"), (None, "str")])
def test_the_end_is_noted_and_printed_and_has_a_status_of_its_own(tmp_path, run_dir, kind):
    """Also where the run has no folder, or one that cannot be written."""
    (tmp_path / "file").write_text("")
    env = {name: value for name, value in os.environ.items() if name != RUN_DIR_VARIABLE}
    env |= {} if run_dir is None else {RUN_DIR_VARIABLE: str(tmp_path / run_dir)}
    code = f"from arpo_verl.plugin.run_watch import *; end_process({kind}('an engine died'))"
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1 and "arpo_verl: the run ends: an engine died" in ended.stdout
    noted = [(fault.sentence, fault.lasts) for fault in read_faults(tmp_path / "run")]
    assert noted == [("an engine died", kind == "Lasting")] * (run_dir == "run")


def test_an_errors_words_are_short_and_on_one_line():
    assert in_words(ValueError("a\n  b \x1b[31mred\x1b[0m ^^^^")) == "ValueError: a b red"
    assert in_words(ActorDiedError()).startswith("ActorDiedError: ")
    assert in_words("it died. Some common causes include: (1) memory") == "it died."
    long = in_words("x" * 300 + "y" * 300)
    assert len(long) < 410 and long.startswith("xx") and long.endswith("yy")
