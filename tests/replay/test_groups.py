"""The groups of a batch, what ARPO's rule replays into them, and their metrics."""

from collections import Counter

import pytest
from support.replay_trajectories import stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group, Outcome, form_groups
from arpo_verl.replay.methods.arpo import Arpo
from arpo_verl.replay.metrics import group_metrics, rollout_metrics, store_metrics
from arpo_verl.replay.store.success_store import SuccessStore

CONFIG = ReplayConfig()


def outcome(session, success, uid="u", task_id="a", format_error=False, reward=None, stop="finished", turns=3, **more):
    reward = success - 0.5 * format_error if reward is None else reward
    return Outcome(f"{uid}_{session}_0", task_id, success, reward, format_error, stop, turns, **more)


def group(*scores, task_id="a", uid="u", **kwargs):
    return Group(task_id, tuple(outcome(i, s, uid=uid, task_id=task_id, **kwargs) for i, s in enumerate(scores)))


def store_of(*trajectories):
    store = SuccessStore(8)
    for trajectory in trajectories:
        store.add(trajectory)
    return store


def plan(groups, store, step=9, draw=0, **options):
    return Arpo().choose(groups, store, ReplayConfig(**options), step, draw)


@pytest.mark.parametrize(
    ("scores", "options", "failed"),
    [
        ((0, 0, 0, 0), {}, True),
        ((1, 0, 0, 0, 0, 0, 0, 0), {}, False),  # mean 0.125 is low enough, sigma 0.33 is not
        ((1, 1, 1, 1), {}, False),  # sigma 0 is low enough, mean 1 is not
        ((0.1, 0.1, 0.0, 0.0), {}, False),  # population sigma is 0.05, not below it
        ((0.08, 0.0), {}, True),  # population sigma 0.04, sample sigma 0.057
        ((0.2, 0.2), {}, False),  # mean 0.2 is not below 0.2
        ((0.36, 0.36, 0.0), {"std_threshold": 0.18, "mean_threshold": 0.25}, True),  # mean 0.24, sigma 0.17
        ((0.36, 0.36, 0.0), {"std_threshold": 0.18}, False),
        ((0.36, 0.36, 0.0), {"mean_threshold": 0.25}, False),
    ],
)
def test_the_trigger_asks_for_low_spread_and_low_mean(scores, options, failed):
    assert group(*scores).all_failed(ReplayConfig(**options)) is failed
    assert group(*scores, format_error=True).all_failed(ReplayConfig(**options)) is failed


def test_a_group_is_a_prompt_whatever_order_its_rollouts_arrive_in():
    rows = [outcome(10, 0, uid="x_x"), outcome(0, 1, uid="y", task_id="b"), outcome(2, 1, uid="x_x")]
    first, second = form_groups(rows)
    assert [(o.key, o.uid, o.session) for o in first.outcomes] == [("x_x_2_0", "x_x", 2), ("x_x_10_0", "x_x", 10)]
    assert (first.task_id, second.task_id) == ("a", "b")


def test_a_score_at_the_threshold_is_a_success():
    at, below = CONFIG.success_threshold, CONFIG.success_threshold - 0.01
    assert outcome(0, at).is_success(CONFIG) and not outcome(0, below).is_success(CONFIG)
    assert not outcome(0, 1.0, format_error=True).is_success(CONFIG)
    assert group(at, 1).all_solved(CONFIG) and not group(at, below).all_solved(CONFIG)
    store, config = store_of(stored()), ReplayConfig(std_threshold=0.5, mean_threshold=at)
    for step in range(20):
        (replacement,) = Arpo().choose([group(at, below)], store, config, step=step)
        assert replacement.outcome.success == below


def test_a_prompt_of_two_tasks_is_refused():
    with pytest.raises(ReplayError, match="must be of one task"):
        form_groups([outcome(0, 0), outcome(1, 0, task_id="b")])


@pytest.mark.parametrize(
    ("scores", "task_id", "steps"),
    [
        ((0, 0, 0, 0), "b", [2]),
        *(((0, 0, 1), "a", []), ((1, 1), "a", [])),  # they need none
        *(((0,), "a", []), ((1,), "a", [])),  # lone rollouts
        ((0, 0), "c", []),  # nothing is stored
    ],
)
def test_an_all_failed_group_gets_one_success_of_its_own_task(scores, task_id, steps):
    chosen = plan([group(*scores, task_id=task_id)], store_of(stored("a", step=1), stored("b", step=2)), step=5)
    assert [(one.candidate.step, one.outcome.task_id) for one in chosen] == [(step, task_id) for step in steps]


def test_victim_and_success_are_random_but_fixed_by_seed_step_and_task():
    store = store_of(*(stored("a", step=step) for step in range(4)))

    def chosen(step, seed=0, groups=None):
        plan = Arpo().choose(groups or [group(0, 0, 0, 0)], store, ReplayConfig(seed=seed), step)
        return [(r.outcome.session, r.candidate.step) for r in plan]

    assert chosen(7) == chosen(7)
    pairs = Counter(pair for step in range(1600) for pair in chosen(step))
    assert len(pairs) == 16 and all(abs(count - 100) < 50 for count in pairs.values())  # 5 sigma is 48
    assert [chosen(7, seed=s) for s in range(9)] != [chosen(7)] * 9
    # Another task's group in between changes nothing; a second group of the task draws anew.
    other = group(0, 0, task_id="b", uid="v")
    same = [group(0, 0, 0, 0, uid=uid) for uid in "wx"]
    assert chosen(7, groups=[other, *same])[:1] == chosen(7)
    assert any(len(set(chosen(step, groups=same))) == 2 for step in range(5))


def test_a_replay_is_better_than_the_rollout_that_it_replaces():
    half, full = stored(step=1, success=0.6), stored(step=2, success=1.0)
    wide = {"mean_threshold": 0.7, "success_threshold": 0.7}
    for step in range(20):
        (replacement,) = plan([group(*[0.6] * 8)], store_of(half, full), step=step, **wide)
        assert replacement.candidate.step == 2
    assert plan([group(*[0.6] * 8)], store_of(half), **wide) == ()


def test_no_success_is_used_twice_in_a_batch_however_often_it_is_stored():
    groups = [group(0, 0, uid=uid) for uid in "pqrs"]
    store = store_of(stored(step=1), stored(step=2), stored(step=2), stored("b", step=3))
    assert sorted(r.candidate.step for r in plan(groups, store)) == [1, 2]


def test_more_groups_only_add_to_the_plan():
    """So that what is rebuilt while the others still generate is what will be wanted."""
    store = store_of(*(stored(task_id, step=step) for task_id in "ab" for step in range(6)))
    groups = [group(0, 0, task_id=task_id, uid=f"{task_id}{i}", drawn=i) for i in range(3) for task_id in "ab"]
    for number in range(1, 6):
        assert plan(groups, store)[:number] == plan(groups[:number], store)


def test_a_second_batch_of_the_same_step_draws_anew():
    store = store_of(*(stored(step=step) for step in range(8)))
    chosen = {plan([group(0, 0)], store, draw=draw)[0].candidate.step for draw in range(30)}
    assert len(chosen) > 3


def test_a_graded_failure_can_be_replaced_but_never_a_success():
    config = ReplayConfig(std_threshold=0.5, mean_threshold=0.5, success_threshold=0.6)
    scores = group(0.7, 0.0, 0.1)  # triggers under these wide thresholds, yet one member succeeded
    victims = {Arpo().choose([scores], store_of(stored()), config, s)[0].outcome.session for s in range(60)}
    assert victims == {1, 2}


def test_metrics_count_groups_before_and_information_after_the_replays():
    groups = [
        group(0, 0, task_id="a", uid="p"),
        group(0, 0, task_id="b", uid="q"),
        group(1, 1, task_id="c", uid="r"),
        group(0, 1, task_id="d", uid="s"),
    ]
    plan = Arpo().choose(groups, store_of(stored("a")), CONFIG, step=1)
    metrics = group_metrics(groups, plan, CONFIG, 1)
    assert metrics == {
        "replay/age_mean": 0,
        "replay/added": 0,
        "replay/groups_all_failed": 2,
        "replay/groups_all_solved": 1,
        "replay/groups_mixed": 1,
        "replay/injected": 1,
        "replay/missed": 1,  # no success of b is cached
        "replay/informative_share": 0.5,  # a with its replay, and d
    }
    assert group_metrics(groups, (), CONFIG, 1)["replay/informative_share"] == 0.25


def test_a_format_penalty_alone_makes_a_group_informative_but_a_lone_rollout_never():
    penalised = Group("a", (outcome(0, 0.0, format_error=True), outcome(1, 0.0)))
    assert group_metrics([penalised], (), CONFIG, 1)["replay/informative_share"] == 1.0
    assert group_metrics([group(1.0)], (), CONFIG, 1)["replay/informative_share"] == 0.0


def test_rollout_metrics_tell_how_the_rollouts_ended():
    groups = [
        Group("a", (outcome(0, 1.0, turns=2), outcome(1, 0.0, turns=4, stop="step_limit"))),
        Group("b", (outcome(0, 0.0, format_error=True, turns=1, stop="parse_error"), outcome(1, 0.0, turns=5))),
    ]
    assert rollout_metrics(groups) == {
        "rollout/success_mean": 0.25,
        "rollout/reward_mean": 0.125,  # 1, 0, -0.5, 0
        "rollout/format_error_mean": 0.25,
        "rollout/turns_mean": 3.0,
        "rollout/informative_share": 1.0,
        "rollout/stop/finished": 0.5,
        "rollout/stop/failed": 0.0,
        "rollout/stop/parse_error": 0.25,
        "rollout/stop/step_limit": 0.25,
        "rollout/stop/token_limit": 0.0,
        "rollout/stop/desktop_ended": 0.0,
    }


def test_store_metrics_tell_its_size():
    metrics = store_metrics(store_of(stored("a", screenshots=[b"x" * 2**20]), stored("b", screenshots=[])), 2)
    assert metrics["replay/store_trajectories"] == 2 and metrics["replay/store_tasks"] == 2
    assert metrics["replay/stored"] == 2
    assert metrics["replay/store_mib"] == pytest.approx(1.0, abs=0.01)
