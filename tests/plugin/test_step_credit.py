"""Anchor states against numbers worked by hand, and the gradient that they give against the true one."""

import itertools

import numpy as np
import pytest
from omegaconf import OmegaConf

from arpo_verl.errors import ConfigError
from arpo_verl.plugin.step_credit import (
    ANCHOR_STATES,
    CREDIT_METRICS,
    EpisodeTurns,
    StepCreditConfig,
    anchor_credit,
    credit_metrics,
    step_credit_of,
)
from arpo_verl.rollout.screen import CELLS

pytestmark = pytest.mark.release


def turns(screens, reward, group="g", is_replay=False):
    """An episode that replied to these screens, each a letter."""
    pictures = np.array([[ord(screen)] * CELLS for screen in screens], np.uint8).reshape(-1, CELLS)
    return EpisodeTurns(group, reward, pictures * 17, is_replay)


def credit(*episodes, discount=1.0, weight=1.0):
    config = StepCreditConfig(ANCHOR_STATES, weight, discount)
    return anchor_credit(episodes, config)


def advantages(*episodes, discount=1.0):
    return [one.advantages_T.tolist() for one in credit(*episodes, discount=discount)]


def test_the_turn_at_which_rollouts_part_is_told_from_those_that_they_share():
    """a b c solves it, a b d and a e do not: half of what passes b is solved, and none of what turns to e."""
    solved, parted, lost = advantages(turns("abc", 1.0), turns("abd", 0.0), turns("ae", 0.0))
    assert solved == [1.0, 1.0, 0.0]  # others from a: 0, 0; from b: 0; before c: nobody
    assert parted == [-0.5, -1.0, 0.0]  # from a: 1, 0; from b: 1
    assert lost == [-0.5, 0.0]


def test_the_reward_counts_less_for_each_turn_that_is_still_to_come():
    # Returns: ab 0.9, 1; aab 0.81, 0.9, 1. The first of the three turned in a circle.
    straight, around = advantages(turns("ab", 1.0), turns("aab", 1.0), discount=0.9)
    assert straight == pytest.approx([0.9 - 0.81, 0.0])
    assert around == pytest.approx([0.81 - 0.9, 0.0, 0.0])


def test_another_rollout_counts_once_by_its_first_turn_before_the_screen():
    # From a: solved 0.5; aab 0.25 (its first), ac 0: the mean is 0.125, whatever is seen twice.
    one, *_ = advantages(turns("ab", 1.0), turns("aab", 1.0), turns("ac", 0.0), discount=0.5)
    assert one[0] == pytest.approx(0.5 - (0.25 + 0.0) / 2)


def test_groups_do_not_mix_and_a_lone_screen_gets_nothing():
    assert advantages(turns("ab", 1.0, "x"), turns("ac", 0.0, "y"), turns("dc", 1.0, "x")) == [[0, 0], [0, 0], [0, 0]]


def test_a_replay_is_compared_with_the_groups_own_and_none_of_them_with_it():
    replay, own, other = credit(turns("abc", 1.0, is_replay=True), turns("abd", 0.0), turns("ae", -1.0))
    assert replay.advantages_T.tolist() == [1.5, 1.0, 0.0] and replay.compared_T.tolist() == [2, 1, 0]
    assert own.advantages_T.tolist() == [1.0, 0.0, 0.0] and own.compared_T.tolist() == [1, 0, 0]
    assert other.advantages_T.tolist() == [-1.0, 0.0]
    assert advantages(turns("a", 1.0, is_replay=True), turns("a", 1.0, is_replay=True)) == [[0.0], [0.0]]


def test_episodes_may_have_any_number_of_turns_and_the_order_of_episodes_says_nothing():
    episodes = [turns("abac", 1.0), turns("", 0.0), turns("cab", 0.0), turns("b", 1.0)]
    forwards = advantages(*episodes, discount=0.9)
    assert forwards == advantages(*episodes[::-1], discount=0.9)[::-1]
    assert forwards[1] == []


def test_metrics_tell_how_many_turns_are_compared_and_among_how_many():
    credits = credit(turns("abc", 1.0), turns("abd", 0.0), turns("ae", 0.0))
    # a: three times three rollouts, b: twice two; c, d, e alone.
    assert credit_metrics(credits) == dict(zip(CREDIT_METRICS, (5 / 8, (3 * 3 + 2 * 2) / 5), strict=True))
    assert credit_metrics(credit(turns("a", 1.0))) == {CREDIT_METRICS[0]: 0.0}


# A task on two screens, of three turns: on `a` the policy stays, or goes to `b`; on `b` it solves the task, or ends it
# unsolved, or waits. It decides itself how long the episode is, and sees screens again.
PROBABILITIES = {"a": {"stay": 0.3, "go": 0.7}, "b": {"solve": 0.45, "end": 0.35, "wait": 0.2}}
NEXT = {"stay": "a", "go": "b", "wait": "b"}
TURNS = 3


def rollouts(screen="a", left=TURNS):
    """Every rollout from here with its probability: screens, actions, reward."""
    if left == 0:
        yield 1.0, "", (), 0.0
        return
    for action, probability in PROBABILITIES[screen].items():
        rest = rollouts(NEXT[action], left - 1) if action in NEXT else [(1.0, "", (), float(action == "solve"))]
        for p, screens, actions, reward in rest:
            yield probability * p, screen + screens, (action, *actions), reward


def mean_advantages(estimate, size):
    """The exact mean of the advantage of each action at each turn and screen, over all groups of `size` rollouts."""
    weights, totals = {}, {}
    for group in itertools.product(list(rollouts()), repeat=size):
        probability = np.prod([p for p, *_ in group])
        estimated = estimate([(screens, reward) for _, screens, _, reward in group])
        _, screens, actions, _ = group[0]
        for place in enumerate(zip(screens, actions, strict=True)):
            weights[place] = weights.get(place, 0) + probability
            totals[place] = totals.get(place, 0) + probability * estimated[0][place[0]]
    return {place: totals[place] / weights[place] for place in totals}


def true_values(discount):
    """Q of each action at each turn and screen."""
    weights, totals = {}, {}
    for p, screens, actions, reward in rollouts():
        for turn, at in enumerate(zip(screens, actions, strict=True)):
            weights[turn, at] = weights.get((turn, at), 0) + p
            value = reward * discount ** (len(screens) - 1 - turn)
            totals[turn, at] = totals.get((turn, at), 0) + p * value
    return {place: totals[place] / weights[place] for place in totals}


def of_two_actions(estimate, size, discount):
    """Of every two actions at one turn and screen: by how much their mean advantages differ, and their true values."""
    means, values = mean_advantages(estimate, size), true_values(discount)
    for one, other in itertools.combinations(means, 2):
        if one[0] == other[0] and one[1][0] == other[1][0]:
            yield (*one, other[1][1]), means[one] - means[other], values[one] - values[other]


def ours(discount):
    return lambda group: advantages(*(turns(*one) for one in group), discount=discount)


def gigpo(discount):
    """As published: the mean over all turns before the screen, the rollout's own among them."""

    def estimate(group):
        seen = {}
        returns = [[r * discount ** (len(s) - 1 - t) for t in range(len(s))] for s, r in group]
        for (screens, _), of in zip(group, returns, strict=True):
            for screen, value in zip(screens, of, strict=True):
                seen.setdefault(screen, []).append(value)
        return [
            [v - np.mean(seen[x]) for x, v in zip(s, of, strict=True)]
            for (s, _), of in zip(group, returns, strict=True)
        ]

    return estimate


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_advantages_are_on_average_the_true_ones_wherever_there_is_somebody_to_compare_with(discount, size):
    """A baseline that knows nothing of the action leaves the differences between actions as they are, times how often
    there is a baseline: the gradient at each screen points where the true one does."""
    shown = {at: 1 - sum(p for p, screens, *_ in rollouts() if at not in screens) for at in "ab"}
    places = set()
    for (turn, (at, _), _), mean, value in of_two_actions(ours(discount), size, discount):
        places.add((turn, at))
        assert mean == pytest.approx((1 - (1 - shown[at]) ** (size - 1)) * value, abs=1e-12)
    assert len(places) == 5  # all but b in the first turn


def test_with_its_own_returns_to_a_screen_in_the_mean_waiting_would_be_worth_less_than_it_is():
    """What the departure from GiGPO is for: the longer a rollout waits, the more of its baseline is itself."""
    found = {
        (*at, one, other): (mean, value) for (*at, (_, one), other), mean, value in of_two_actions(gigpo(0.8), 2, 0.8)
    }
    scale, value = found[1, "solve", "end"]
    assert value == 1
    for one in ("solve", "end"):
        mean, value = found[1, one, "wait"]
        assert mean > scale * value + 0.005


def test_options_are_checked():
    assert step_credit_of(None).kind == step_credit_of({}).kind == "none"
    of = lambda **values: step_credit_of(OmegaConf.create({"step_credit": values}))  # noqa: E731
    assert of(kind=ANCHOR_STATES, discount=1) == StepCreditConfig(ANCHOR_STATES, discount=1)
    for name, value in {"kind": "turns", "weight": 0, "discount": 1.1, "tolerance": -1}.items():
        with pytest.raises(ConfigError, match=rf"algorithm\.step_credit\.{name} must be"):
            of(**{name: value})
    with pytest.raises(ConfigError, match="did you mean algorithm.step_credit.weight"):
        of(wieght=1)
