"""What each replay method chooses and how it weighs, by numbers computed by hand from its paper's formula."""

import hashlib
import json
import math
import random
from collections import Counter

import pytest
from support.replay_trajectories import group, store_of, stored

from arpo_verl.errors import ConfigError
from arpo_verl.replay.config import METHODS, ReplayConfig
from arpo_verl.replay.groups import Group, Outcome
from arpo_verl.replay.methods import load_method, method_that_replaces
from arpo_verl.replay.methods.arpo import Arpo
from arpo_verl.replay.methods.exgrpo import ExGrpo, bucket_chance
from arpo_verl.replay.methods.fresh import Fresh
from arpo_verl.replay.methods.rlep import Rlep
from arpo_verl.replay.methods.spear import Spear
from arpo_verl.replay.metrics import group_metrics
from arpo_verl.replay.store.persistence import Fingerprint, load_store, save_store
from arpo_verl.replay.store.success_store import SuccessStore

torch = pytest.importorskip("torch")

from arpo_verl.replay.advantages import group_advantages  # noqa: E402

CONFIG = ReplayConfig()


def successes(number, **changes):
    """Distinct successes of one task."""
    return [stored(response_ids=(i, i + 1), **changes) for i in range(number)]


def test_arpo_trains_as_before_methods_existed():
    """The digest is of the same ten steps with the code of commit b3c520fe: choices, advantages and stores."""
    rng, store, config, lines = random.Random(1), SuccessStore(4), ReplayConfig(seed=7), []
    for step in range(1, 11):
        groups = []
        for number in range(12):
            task = f"task{rng.randrange(5)}"
            scores = [float(rng.random() < 0.15) for _ in range(4)]
            rewards = [score - 0.5 * (rng.random() < 0.3) for score in scores]
            members = [
                Outcome(f"u{number}_{i}_0", task, score, reward, False, "finished", 3, drawn=number)
                for i, (score, reward) in enumerate(zip(scores, rewards, strict=True))
            ]
            groups.append(Group(task, tuple(members)))
        chosen = load_method(config).choose(groups, store, config, step)
        outcomes = [outcome for one in groups for outcome in one.outcomes]
        by_key = {replay.key: replay.candidate.reward for replay in chosen}
        advantages = group_advantages(
            torch.tensor([by_key.get(outcome.key, outcome.reward) for outcome in outcomes]),
            [outcome.uid for outcome in outcomes],
            is_replay_B=[outcome.key in by_key for outcome in outcomes],
        )
        lines.append([step, [(replay.outcome.key, replay.candidate.serial) for replay in chosen]])
        lines[-1].append([round(advantage, 5) for advantage in advantages.tolist()])
        for outcome in outcomes:
            if outcome.success:
                ids = (len(lines), outcome.session + 1)
                store.add(stored(outcome.task_id, step=step, reward=outcome.reward, response_ids=ids))
        lines.append([serial for serial, _ in store.records()])
    digest = hashlib.sha256(json.dumps(lines).encode()).hexdigest()
    assert digest == "5a788347e663cc11c0be0a13300148d2681d2162da3e9b822cb2257244313741"


def test_fresh_weighs_by_reward_and_age():
    fresh = Fresh(tau=10.0)
    (old,) = store_of(stored(step=5, reward=0.5)).candidates("a")
    assert fresh.priority(old, 25) == pytest.approx(0.5 * math.exp(-2), rel=1e-5)
    assert fresh.priority(old, 10**9) > 0  # so that it can be drawn where there is no other
    store = store_of(stored(step=1, response_ids=(1, 1)), stored(step=21, response_ids=(2, 2)))
    plans = [fresh.choose([group(0, 0)], store, ReplayConfig(seed=seed), 21) for seed in range(1000)]
    new = sum(replay.candidate.step == 21 for (replay,) in plans)
    assert new / 1000 == pytest.approx(1 / (1 + math.exp(-2)), abs=0.03)  # 0.88
    aged = store_of(*(stored(step=step, response_ids=(step, 0)) for step in (1, 10, 21)))
    orders = [fresh.order(aged.candidates("a"), aged, 4_000, random.Random(seed)) for seed in range(1000)]
    assert all(sorted(one.step for one in order) == [1, 10, 21] for order in orders)
    weights = [math.exp(-2), math.exp(-1.1), 1.0]  # also where each weight is tiny
    assert [order[0].step for order in orders].count(21) / 1000 == pytest.approx(1 / sum(weights), abs=0.05)


@pytest.mark.parametrize(
    ("rewards", "of_replays", "added"),
    [
        ((0, 0, 0, 0), (1.0, 1.0, 1.0), 2),  # M = 2 of the three
        ((1, 0, 0, 0), (1.0,), 1),  # a mixed group too
        ((1, 1, 1, 1), (1.0,), 0),  # nothing is gained
        ((0, 0), (), 0),
    ],
)
def test_rlep_adds_beside_the_group(rewards, of_replays, added):
    store = store_of(*(stored(reward=reward, response_ids=(i, 0)) for i, reward in enumerate(of_replays)))
    plan = Rlep().choose([group(*rewards)], store, CONFIG, 1)
    assert [replay.key for replay in plan] == [f"u_{1000 + number}_0" for number in range(added)]
    assert {replay.advantage for replay in plan} <= {None}


def test_rlep_uses_no_success_twice():
    groups = [group(0, 0, uid=f"u{number}", drawn=number) for number in range(3)]
    plan = Rlep().choose(groups, store_of(*successes(5)), CONFIG, 1)
    assert Counter(replay.outcome.uid for replay in plan) == {"u0": 2, "u1": 2, "u2": 1}
    assert len({replay.candidate.serial for replay in plan}) == 5


def test_spear_recalibrates_by_the_median_of_recent_groups():
    # The median of 0, 0.5 and this group's 0.25 is 0.25; step 50 of 100 weighs (1 - cos(pi / 2)) / 2 = 0.5.
    store, spear = store_of(*successes(1, step=45)), Spear()
    store.memory[:] = [0.0, 0.5]
    (replay,) = spear.choose([group(0.5, 0.0)], store, CONFIG, 50)
    assert replay.advantage == pytest.approx(0.5 * (1.0 - 0.25))
    assert replay.added == 0
    assert spear.choose([group(0.5, 0.0)], store, CONFIG, 56) == ()  # older than 10 steps
    assert spear.choose([group(0.5, 0.0)], store, CONFIG, 44) == ()  # another run's, of a step to come
    store.memory[:] = [1.0, 1.0, 1.0]
    assert spear.choose([group(0.5, 0.0)], store, CONFIG, 50) == ()  # not above the median


@pytest.mark.parametrize(("step", "weight"), [(1, 0.00024672), (25, 0.146447), (50, 0.5), (100, 1.0), (900, 1.0)])
def test_the_weight_of_spear_rises_by_a_cosine(step, weight):
    assert Spear().weight(step) == pytest.approx(weight, rel=1e-3)
    assert Spear(warm_up_steps=0).weight(step) == 1.0


def test_what_a_method_remembers_is_bounded_and_saved_with_the_store(tmp_path):
    memory = [0.25] * 3
    Spear(num_baselines=4).remember([group(1, 0), group(0, 0)], memory)
    assert memory == [0.25, 0.25, 0.5, 0.0]
    store, fingerprint = store_of(stored()), Fingerprint("t", "p", "q")
    store.memory[:] = [0.25, -1.0]
    save_store(store, tmp_path, fingerprint)
    assert load_store(tmp_path, fingerprint, into=SuccessStore(8)).memory == [0.25, -1.0]
    store.memory[:] = [float("nan")]
    save_store(store, tmp_path, fingerprint)
    assert load_store(tmp_path, fingerprint).memory == []


@pytest.mark.parametrize(
    ("solved", "size", "chance"),
    [
        (4, 8, 1.0),
        (3, 8, math.exp(-0.5)),
        (2, 8, math.exp(-2)),
        (0, 8, math.exp(-8)),
        (1, 3, 1.0),
        (0, 3, math.exp(-1)),
    ],
)
def test_exgrpo_draws_groups_by_their_bucket(solved, size, chance):
    assert bucket_chance(solved, size) == pytest.approx(chance)
    store = store_of(stored())
    drawn = sum(
        bool(ExGrpo().choose([group(*[1] * solved, *[0] * (size - solved))], store, ReplayConfig(seed=seed), 1))
        for seed in range(300)
    )
    assert drawn / 300 == pytest.approx(chance if solved else 0.0, abs=0.09)  # the bucket of 0 does not exist


def test_exgrpo_takes_the_surest_success_and_never_a_solved_group():
    sure, unsure = ((-0.1, -0.3), (-0.1, -0.5))
    store = store_of(
        stored(rollout_log_probs=unsure, response_ids=(1, 1)),
        stored(rollout_log_probs=None, response_ids=(2, 2)),
        stored(rollout_log_probs=sure, response_ids=(3, 3)),
    )
    (replay,) = ExGrpo().choose([group(1, 0, 0)], store, CONFIG, 1)
    assert (replay.candidate.serial, replay.added) == (2, None) and replay.outcome.session > 0
    assert ExGrpo().choose([group(1, 1)], store, CONFIG, 1) == ()


def test_exgrpo_weighs_a_token_by_the_gradient_of_the_shaped_ratio():
    ratio = torch.tensor([1.0, 0.1, 0.0, 10.0], requires_grad=True)
    weights = ExGrpo().token_weight(ratio)
    assert weights.tolist() == pytest.approx([0.1 / 1.21, 0.25, 0.0, 1.0 / 102.01])
    (ratio / (ratio + 0.1)).sum().backward()
    assert torch.allclose(weights, ratio.grad * ratio)  # d f(w) / d log pi


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("changes", [{"reward": -1.0}, {"task_content": "another"}], ids=["C3", "C4"])
def test_no_method_replays_without_a_gain_or_another_content(name, changes):
    """C3: the stored reward is of another reward function, below what failures get today."""
    store, method = store_of(*successes(3, **changes)), load_method(ReplayConfig(method=name))
    for seed in range(20):
        groups = [group(0, 0), group(1, 0, uid="v")]
        assert method.choose(groups, store, ReplayConfig(seed=seed), 1) == ()


@pytest.mark.parametrize("name", METHODS)
def test_a_choice_does_not_depend_on_which_groups_finished_first(name):
    method = load_method(ReplayConfig(method=name))
    store = store_of(*successes(6), *successes(6, task_id="b"))
    groups = [group(i % 2, 0, 0, task_id="ab"[i % 3 == 0], uid=f"u{i}", drawn=i) for i in range(8)]
    plan = method.choose(groups, store, CONFIG, 1)
    assert len({replay.outcome.task_id for replay in plan}) == 2
    for seed in range(20):
        assert method.choose(random.Random(seed).sample(groups, 8), store, CONFIG, 1) == plan


def test_metrics_count_what_stands_beside_a_group():
    groups = [group(0, 0), group(1, 1, uid="v")]
    plan = Rlep().choose(groups, store_of(*successes(3, step=4)), CONFIG, 9)
    metrics = group_metrics(groups, plan, CONFIG, 9)
    expected = {"injected": 2, "added": 2, "missed": 0, "age_mean": 5.0, "informative_share": 0.5}
    assert {name: metrics[f"replay/{name}"] for name in expected} == expected
    assert "replay/age_mean" not in group_metrics(groups, (), CONFIG, 9)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("rlap", {}, "replay.method must name one of arpo, fresh, rlep, spear, exgrpo, or a class"),
        ("arpo_verl.errors:ArpoError", {}, "a subclass of arpo_verl.replay.methods.base.ReplayMethod"),
        ("absent_module:Method", {}, "No module named 'absent_module'"),
        ("fresh", {"tau": 0}, "replay.method_options.tau must be more than 0 training steps, got 0"),
        ("arpo", {"tau": 5}, "replay.method_options.tau is not an option"),
        ("rlep", {"most_added": 0}, "replay.method_options.most_added must be a whole number of at least 1"),
    ],
)
def test_a_wrong_method_is_refused(method, options, words):
    with pytest.raises(ConfigError) as error:
        load_method(ReplayConfig(method=method, method_options=options))
    assert words in str(error.value)


def test_where_only_replacing_works_others_are_refused():
    assert method_that_replaces(ReplayConfig(method="fresh"), "with EasyR1") == Fresh()
    with pytest.raises(ConfigError, match="only replaces failures, as arpo and fresh, with EasyR1, got 'rlep'"):
        method_that_replaces(ReplayConfig(method="rlep"), "with EasyR1")
    assert load_method(CONFIG) == Arpo()
