"""From where in a success a failing task's rollouts begin."""

import itertools
import random

import pytest
from support.replay_trajectories import stored

from arpo_verl.replay.choice import Outcome, Start, form_groups
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.metrics import resume_metrics, rollout_metrics
from arpo_verl.replay.resume import Curriculum
from arpo_verl.replay.store.success_store import SuccessStore

CONFIG = ReplayConfig(mode="resume")


def success(length, step=1, seed=0, **changes):
    """Of `length` steps: each reply is its number twice, a context token between two."""
    response, mask = [], []
    for number in range(length):
        context = [] if not number else [9000]
        response += [*context, 100 * seed + number, 100 * seed + number]
        mask += [0] * len(context) + [1, 1]
    shots = [f"{seed} {number}".encode() for number in range(length)]
    log_probs = [-0.5] * len(response)
    values = dict(response_ids=response, response_mask=mask, rollout_log_probs=log_probs, screenshots=shots, step=step)
    return stored(**{**values, **changes})


def store_of(*trajectories):
    store = SuccessStore(8, 10**9)
    for trajectory in trajectories:
        assert store.add(trajectory)
    return store


def played(curriculum, scores, start=None, uid="u", task_id="a"):
    """Have a group of these scores, from `start`, recorded."""
    start = start or Start()
    outcomes = [
        Outcome(f"{uid}_{session}_0", task_id, score, score, False, "finished", start.steps + 1, 1, start)
        for session, score in enumerate(scores)
    ]
    groups = form_groups(outcomes)
    curriculum.record(groups)
    return groups


def drawn(curriculum, store, step=1):
    resumption = curriculum.draw("a", store, step)
    return None if resumption is None else resumption.start


def test_a_task_resumes_once_its_groups_keep_failing():
    curriculum, store = Curriculum(CONFIG), store_of(success(5))
    for scores in ([0, 0], [1, 0], [0, 0]):  # a group that was not all failures breaks the row
        assert drawn(curriculum, store) is None
        played(curriculum, scores)
    assert drawn(curriculum, store) is None
    played(curriculum, [0, 0])
    resumption = curriculum.draw("a", store, 1)
    assert resumption.start == Start(3, 2)
    assert resumption.replies == [[n, n] for n in range(3)] and resumption.screenshots == (b"0 0", b"0 3")
    assert curriculum.draw("b", store, 1) is None


def test_without_a_success_it_begins_at_the_beginning():
    curriculum = Curriculum(CONFIG)
    for _ in range(9):
        played(curriculum, [0, 0])
    assert drawn(curriculum, store_of()) is None
    assert drawn(curriculum, store_of(success(5))) == Start(3, 2)
    old = Curriculum(ReplayConfig(mode="resume", max_age_steps=3, resume_after=0))
    assert drawn(old, store_of(success(5, step=1)), step=4) == Start(3, 2)
    assert drawn(old, store_of(success(5, step=1)), step=5) is None


def test_the_start_moves_back_where_the_task_is_solved_until_it_is_the_beginning():
    curriculum, store, starts = Curriculum(CONFIG), store_of(success(6)), []
    for _ in range(2):
        played(curriculum, [0, 0])
    while (start := drawn(curriculum, store)) is not None:
        starts.append(start)
        played(curriculum, [1, 0], start)
    assert starts == [Start(4, 2), Start(2, 4)]
    # Solved from the beginning, it stays there; where it keeps failing again, it resumes near the beginning.
    played(curriculum, [1, 0])
    assert drawn(curriculum, store) is None
    for _ in range(4):
        played(curriculum, [0, 0])
        if (start := drawn(curriculum, store)) is not None:
            break
    assert start == Start(1, 5)


def test_it_moves_forward_where_all_failed_and_stays_where_the_group_differs():
    curriculum, store = Curriculum(ReplayConfig(mode="resume", resume_after=0)), store_of(success(9))
    played(curriculum, [1] * 4, Start(5, 4))
    assert drawn(curriculum, store) == Start(3, 6)
    played(curriculum, [0] * 4, Start(3, 6))
    assert drawn(curriculum, store) == Start(4, 5)
    played(curriculum, [1, 0, 0, 0], Start(4, 5))
    assert drawn(curriculum, store) == Start(4, 5)
    for left in (5, 4, 3, 2, 2):  # never the last step alone
        played(curriculum, [0] * 4, Start(9 - left, left))
    assert drawn(curriculum, store) == Start(7, 2)


def test_groups_that_were_drawn_before_do_not_move_it_twice():
    curriculum, store = Curriculum(ReplayConfig(mode="resume", resume_after=0)), store_of(success(9))
    for number in range(3):
        played(curriculum, [1, 1], Start(7, 2), uid=f"u{number}")
    assert drawn(curriculum, store) == Start(5, 4)


def test_groups_of_a_batch_are_taken_together_whatever_their_order():
    def outcomes(uid, scores, start):
        return [Outcome(f"{uid}_{i}_0", "a", s, s, False, "failed", 9, 1, start) for i, s in enumerate(scores)]

    end = Start(7, 2)
    batch = [*outcomes("u", [1, 1], end), *outcomes("v", [0, 0], end), *outcomes("w", [0, 0], Start())]
    states = set()
    for order in itertools.permutations(form_groups(batch)):
        curriculum = Curriculum(ReplayConfig(mode="resume", resume_after=0))
        curriculum.record(order)
        states.add(str(curriculum.state_dict()))
    assert states == {"{'a': [1, 4, 0]}"}


def test_a_state_that_none_of_a_group_came_to_is_not_tried_again():
    curriculum, store = Curriculum(ReplayConfig(mode="resume", resume_after=0)), store_of(success(9))
    played(curriculum, [0, 0, 0], Start(0, 2, True))
    assert drawn(curriculum, store) == Start(5, 4)
    # Where some did, it is their outcome that counts, and the others are a group of their own.
    both = [Outcome(f"u_{i}_0", "a", 0.0, 0.0, False, "failed", 8, 1, Start(0, 4, True)) for i in range(2)]
    both += [Outcome(f"u_{i}_0", "a", 1.0, 1.0, False, "failed", 8, 1, Start(5, 4)) for i in range(2, 4)]
    groups = form_groups(both)
    assert [len(group.outcomes) for group in groups] == [2, 2]
    curriculum.record(groups)
    assert drawn(curriculum, store) == Start(3, 6)


def test_the_success_is_drawn_by_seed_and_count_alone():
    store = store_of(*(success(5, seed=seed, step=seed) for seed in range(1, 6)))

    def draws(seed):
        curriculum = Curriculum(ReplayConfig(mode="resume", resume_after=0, seed=seed))
        return [curriculum.draw("a", store, 1).trajectory.step for _ in range(12)]

    random.seed(0)
    first = draws(1)
    random.seed(1)
    assert draws(1) == first and draws(2) != first and len(set(first)) > 2


def test_it_goes_on_from_its_state():
    curriculum, store = Curriculum(CONFIG), store_of(*(success(9, seed=seed) for seed in range(4)))
    played(curriculum, [0, 0])
    played(curriculum, [0, 0])
    played(curriculum, [1, 0], drawn(curriculum, store))
    other = Curriculum(CONFIG)
    other.load_state_dict(curriculum.state_dict())
    assert other.metrics() == curriculum.metrics() == {"curriculum/tasks_failing": 1, "curriculum/left_mean": 4}
    assert [other.draw("a", store, 1) for _ in range(5)] == [curriculum.draw("a", store, 1) for _ in range(5)]


@pytest.mark.parametrize("length", [1, 2])
def test_a_success_shorter_than_three_steps_is_begun_at_the_beginning(length):
    curriculum, store = Curriculum(ReplayConfig(mode="resume", resume_after=0)), store_of(success(length))
    for _ in range(3):
        assert drawn(curriculum, store) is None
        played(curriculum, [0, 0])
    assert drawn(curriculum, store_of(success(3))) == Start(1, 2)


def test_windows_have_one_reply_a_row():
    rows = [(2, 3, 0, 2), (4, 2, 1, 2)]  # prompt and response tokens, first screenshot, screenshots
    trajectory = stored(
        prompt_ids=[1] * 6,
        response_ids=[7, 7, 8, 8, 8],
        response_mask=[1, 1, 1, 1, 1],
        rollout_log_probs=[0.0] * 5,
        screenshots=[b"0", b"1", b"2"],
        rows=rows,
    )
    curriculum = Curriculum(ReplayConfig(mode="resume", resume_after=0))
    assert drawn(curriculum, store_of(trajectory)) is None  # its replies are not those to its screenshots
    whole = stored(**{**vars_of(trajectory), "response_mask": [1, 0, 1, 1, 1]})
    assert curriculum.draw("a", store_of(whole), 1).replies == [[7]]


def vars_of(trajectory):
    names = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "screenshots", "rows")
    return {name: getattr(trajectory, name) for name in names}


def test_a_success_that_began_within_another_is_not_stored():
    outcome = Outcome("u_0_0", "a", 1.0, 1.0, False, "finished", 5)
    assert outcome.is_success(CONFIG)
    assert not Outcome("u_0_0", "a", 1.0, 1.0, False, "finished", 5, 1, Start(3, 2)).is_success(CONFIG)
    assert Outcome("u_0_0", "a", 1.0, 1.0, False, "finished", 5, 1, Start(0, 2, True)).is_success(CONFIG)


def test_metrics_tell_help_apart():
    curriculum = Curriculum(CONFIG)
    helped = played(curriculum, [1, 0], Start(3, 2))
    missed = played(curriculum, [0, 0], Start(0, 2, True), uid="v")
    alone = played(curriculum, [0, 0], uid="w")
    assert rollout_metrics(helped) == {}
    assert rollout_metrics([*helped, *missed, *alone])["rollout/success_mean"] == 0
    assert resume_metrics([*helped, *missed, *alone]) == {
        "curriculum/rollouts": 2,
        "curriculum/missed": 2,
        "curriculum/success_mean": 0.5,
        "curriculum/given_steps_mean": 3,
        "curriculum/own_steps_mean": 1,
        "curriculum/informative_share": 1,
    }
    assert resume_metrics(alone) == {"curriculum/rollouts": 0, "curriculum/missed": 0}


@pytest.mark.parametrize(
    "bad", [{"mode": "help"}, {"resume_stride": 0}, {"resume_after": -1}, {"resume_tolerance": 0.1}]
)
def test_options_are_checked(bad):
    with pytest.raises(ValueError, match=f"replay.{next(iter(bad))}"):
        ReplayConfig(**bad)


def test_nothing_is_corrected_where_nothing_is_off_policy():
    with pytest.raises(ValueError, match="replay.correction must be none with replay.mode=resume"):
        ReplayConfig(mode="resume", correction="truncated")
