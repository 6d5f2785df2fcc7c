"""A task's jump to 100% within a step: found by the trainer, written and read."""

import pytest

from arpo_verl.records.episode_file import EpisodeKey
from arpo_verl.records.jumps import MIN_EARLIER, Jump, JumpDetector, append_jumps


def attempted(detector, *groups):
    """What each of some groups of one task comes to; a group is its attempts' outcomes."""
    found = [detector.attempted(n, "a", f"u{n}", dict(enumerate(group))) for n, group in enumerate(groups, start=1)]
    return [None if jump is None else jump.step for jump in found]


FAILED, SOLVED, MIXED = [False] * 4, [True] * 4, [False, False, False, True]


@pytest.mark.parametrize(
    ("groups", "jumps_in"),
    [
        ([FAILED, FAILED, SOLVED], [3]),
        ([FAILED, FAILED, SOLVED, SOLVED], [3]),
        ([FAILED, SOLVED], []),
        ([FAILED, FAILED, MIXED, SOLVED], []),
        ([*[FAILED] * 5, MIXED, SOLVED], [7]),
        ([FAILED, FAILED, [True, True, True, False]], []),
        ([FAILED, FAILED, []], []),
        ([SOLVED, SOLVED, SOLVED], []),
    ],
)
def test_a_jump_is_a_group_that_all_succeeds_where_hardly_any_attempt_had(groups, jumps_in):
    assert MIN_EARLIER == 2 * len(FAILED)
    assert [step for step in attempted(JumpDetector(), *groups) if step is not None] == jumps_in


def test_each_task_has_its_own_attempts_and_a_jump_names_the_first_success():
    detector = JumpDetector()
    attempted(detector, FAILED, FAILED)
    assert detector.attempted(3, "b", "u3", {0: True, 1: True}) is None
    jump = detector.attempted(3, "a", "u4", {2: True, 1: True})
    assert jump == Jump("a", 3, 8, "u4", 1) and jump.first == EpisodeKey(None, "u4", 1)


def test_the_last_jump_of_each_task_is_read_and_what_is_none_is_passed_over(written, run):
    path = written.trajectories / "jumps.jsonl"
    assert run.jumps() == {}
    endless = '{"task_id": "a", "uid": "u", "earlier": 8, "session": 0, "step": ' + "9" * 400 + "}\n"
    path.write_text('{"task_id": "a", "step": true}\n{"task_id": 1}\n[]\n' + endless)
    assert run.jumps() == {}
    later = Jump("a", 9, 8, "u9", 0)
    append_jumps(path, [Jump("a", 3, 8, "u1", 0), later, Jump("b", 1, 16, "u2", 3)])
    assert run.jumps() == {"a": later, "b": Jump("b", 1, 16, "u2", 3)}
