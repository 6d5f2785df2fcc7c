"""Partial credit on the embedded desktop, through the sandbox: OSWorld's verdict, and the share beside it."""

import math

import pytest

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.desktops.osworld.verdict import messages
from arpo_verl.desktops.osworld.verdict.sandboxed_evaluator import decode_verdict
from arpo_verl.errors import DesktopEndedError, DesktopLostError
from arpo_verl.types import Fail, Finish, Task

pytestmark = pytest.mark.desktop


def file_check(name):
    return {"type": "vm_command_line", "command": f"cat ~/{name}; true", "shell": True}


def task(made, wanted=("a", "b", "c", "d"), **evaluator):
    """Files of these names must hold `yes`; those of `made` do."""
    command = "cd; " + "".join(f"printf yes > {name}; " for name in made) + "true"
    spec = {
        "id": "files",
        "instruction": "Make the files.",
        "config": [{"type": "execute", "parameters": {"command": command, "shell": True}}],
        "evaluator": {
            "func": ["exact_match"] * len(wanted),
            "result": [file_check(name) for name in wanted],
            "expected": [{"type": "rule", "rules": {"expected": "yes"}}] * len(wanted),
            **evaluator,
        },
    }
    return Task("files", spec["instruction"], spec)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    made = []

    def build(partial_credit):
        if not made:
            folder = str(tmp_path_factory.mktemp("store"))
            made.append(OSWorldEnvironment(EnvironmentConfig(screen_size=(320, 240), cache_dir=folder)))
        config = EnvironmentConfig(screen_size=(320, 240), partial_credit=partial_credit)
        made[0]._evaluator._config = config  # one desktop for all: a boot is not the question
        return made[0]

    yield build
    for environment in made:
        environment.close()


def evaluated(environment, task, end=Finish):
    environment.reset(task)
    environment.step(end())
    return environment.evaluate()


EXPECTED = {"type": "rule", "rules": {"expected": "yes"}}
ONE = {"func": "exact_match", "result": file_check("a"), "expected": EXPECTED}


@pytest.mark.parametrize(
    ("made", "evaluator", "score", "share", "checks"),
    [
        ("bd", {}, 0.0, 0.5, 4),  # OSWorld's client ends at a, and sees neither
        ("abc", {}, 0.0, 0.75, 4),  # it ends at the last
        ("abcd", {}, 1.0, 1.0, 4),
        ("", {}, 0.0, 0.0, 4),
        ("b", {"conj": "or"}, 1.0, 1.0, 2),
        ("", {"conj": "or"}, 0.0, 0.0, 4),
        ("b", ONE, 0.0, 0.0, 1),
        ("a", ONE, 1.0, 1.0, 1),
    ],
)
def test_the_verdict_stays_what_it_is_and_the_share_counts_every_check(make, made, evaluator, score, share, checks):
    verdict = evaluated(make(1.0), task(made, **evaluator))
    assert (verdict.score, verdict.share, len(verdict.metrics)) == (score, share, checks)


@pytest.mark.parametrize(("option", "end", "share", "checks"), [(0.0, Finish, None, 1), (1.0, Fail, 0.0, 0)])
def test_without_the_option_nothing_more_is_asked_of_the_desktop_nor_of_one_who_gives_up(
    make, option, end, share, checks
):
    verdict = evaluated(make(option), task("bd"), end)
    assert (verdict.score, verdict.share, len(verdict.metrics)) == (0.0, share, checks)


@pytest.mark.parametrize("metric", ["check_json", "check_python_file_by_gold_file"], ids=["raises", "returns None"])
def test_a_later_check_that_the_first_one_guarded_may_give_no_score_and_is_not_met(make, metric):
    two = {
        "func": ["exact_match", metric, "exact_match"],
        "result": [file_check("a"), {"type": "vm_file", "path": "/etc/hostname", "dest": "x"}, file_check("c")],
        "expected": [EXPECTED, {"type": "rule", "rules": {}}, EXPECTED],
    }
    assert evaluated(make(1.0), task("c", **two)).share == pytest.approx(1 / 3)


def test_a_desktop_that_is_lost_while_the_rest_is_checked_is_a_fault_and_no_share(make):
    gone = {"type": "vm_command_line", "command": "kill -9 -1", "shell": True}
    two = {"func": ["exact_match"] * 2, "result": [file_check("a"), gone], "expected": [EXPECTED] * 2}
    with pytest.raises((DesktopLostError, DesktopEndedError)):
        evaluated(make(1.0), task("", **two))


@pytest.mark.parametrize("share", [1.5, -0.1, math.inf, "1", True])
def test_a_sandbox_cannot_say_a_share_that_is_none(share):
    with pytest.raises(messages.BadMessage):
        decode_verdict({"score": 0.0, "metrics": [], "share": share})
