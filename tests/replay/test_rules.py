"""What a replay may teach: it enters only where it gains, and belongs to its task's content."""

import json
from collections import Counter

import pytest
from support.replay_trajectories import stored

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group, Outcome
from arpo_verl.replay.methods.arpo import Arpo
from arpo_verl.replay.rules import task_content
from arpo_verl.replay.store.success_store import SuccessStore

torch = pytest.importorskip("torch")

from arpo_verl.replay.advantages import group_advantages  # noqa: E402


def failing(rewards, **more):
    """A group of failures with these rewards."""
    rows = [Outcome(f"u_{i}_0", "a", 0.0, reward, False, "finished", 3, **more) for i, reward in enumerate(rewards)]
    return Group("a", tuple(rows))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rewards", "replay", "replaced"),
    [
        # What the group's rewards are, the stored one, and the members whose place it may take.
        ([0.0, -1.0, 0.0, -1.0], 1.0, {0, 1, 2, 3}),
        ([2.0] * 8, 1.0, set()),  # today's reward function gives failures more
        ([0.81] * 8, 0.5, set()),  # partial credit
        ([0.81, 0.1, 0.2, 0.1], 0.5, {1, 2, 3}),
        ([0.9, 0.9, 0.9, 0.0], 0.5, set()),  # above the one it would replace, below the mean
        ([0.9, 0.0], 0.5, set()),  # in the place of 0.9 it would gain, but a better rollout would leave
        ([0.5] * 4, 0.5, set()),  # nothing is gained
        ([0.6] * 8, 0.6 + 1e-9, set()),  # the same in float32
        ([-3.0, -2.0], -1.0, {0, 1}),
        ([-3.0, -2.0], -2.5, set()),
        ([1e6, 1e6 + 0.01], 1e6 + 0.02, set()),
        ([0.0, NAN], 1.0, set()),
        ([0.0, INF], 1.0, set()),
        ([-INF, INF, 0.0], 1.0, set()),
        ([0.0] * 4, 1e30, set()),  # its square is infinite in float32
    ],
)
@pytest.mark.parametrize("std", ["population", "sample"])
def test_a_replay_enters_only_where_its_advantage_is_above_0(rewards, replay, replaced, std):
    failed = failing(rewards)
    store, left_out, seen = SuccessStore(8), Counter(), set()
    store.add(stored(reward=replay))
    for step in range(40):
        chosen = Arpo().choose([failed], store, ReplayConfig(), step, left_out=left_out)
        for replacement in chosen:
            place = replacement.outcome.session
            after = torch.tensor([*rewards[:place], replay, *rewards[place + 1 :]])
            assert group_advantages(after, ["u"] * len(rewards), std=std)[place] > 0
            seen.add(place)
    assert seen == replaced
    assert left_out["no_gain"] == (0 if replaced else 40)


SPEC = {
    "id": "a",
    "snapshot": "chrome",
    "instruction": "Do it.",
    "source": "https://example.org",
    "config": [{"type": "web_apps", "parameters": {"apps": {"shop_mock": {"folder": "/here/dist", "port": 8100}}}}],
    "related_apps": ["chrome"],
    "evaluator": {"func": "exact_match", "expected": {"type": "rule", "rules": {"expected": 1}}},
    "proxy": False,
}


def changed(**fields):
    return {**SPEC, **fields}


ELSEWHERE = {"shop_mock": {"folder": "/there/dist", "port": 8100}}


@pytest.mark.parametrize(
    ("spec", "is_same"),
    [
        (dict(reversed(SPEC.items())), True),
        (json.dumps(SPEC, indent=3), True),
        (changed(id="b", source="", related_apps=[], trajectory="x/", fixed_ip=False), True),
        (changed(config=[{"type": "web_apps", "parameters": {"apps": ELSEWHERE}}]), True),
        (changed(config=[{"type": "web_apps", "parameters": {"apps": {"bank_mock": ELSEWHERE["shop_mock"]}}}]), False),
        (changed(config=[]), False),
        (changed(evaluator={**SPEC["evaluator"], "func": "fuzzy_match"}), False),
        (changed(evaluator={**SPEC["evaluator"], "expected": {"type": "rule", "rules": {"expected": "1"}}}), False),
        (changed(proxy=True), False),
        (changed(snapshot="libreoffice"), False),
        (changed(own_providers_field=1), False),
        (None, False),
        ("no JSON", False),
    ],
)
def test_a_tasks_content_is_what_is_played_and_judged_wherever_its_file_is(spec, is_same):
    assert (task_content("Do it.", spec) == task_content("Do it.", SPEC)) is is_same
    assert task_content("Do it twice.", spec) != task_content("Do it.", SPEC)


def test_a_content_is_the_same_in_every_process_and_version():
    """It is compared with what other runs saved."""
    assert task_content("Do it.", SPEC) == "d00d2360fa4776f7"


def test_a_success_is_replayed_into_its_own_tasks_content_alone():
    store, left_out = SuccessStore(8), Counter()
    for content, step in (("old", 1), ("new", 2), ("old", 3), ("", 4)):
        store.add(stored(step=step, task_content=content))
    for content, steps in (("old", {1, 3}), ("new", {2}), ("newer", set())):
        chosen = [Arpo().choose([failing([0.0] * 4, task_content=content)], store, ReplayConfig(), s) for s in range(9)]
        assert {one.candidate.step for plan in chosen for one in plan} == steps
    Arpo().choose([failing([0.0] * 4, task_content="new")], store, ReplayConfig(), 1, left_out=left_out)
    assert left_out == {"changed_task": 3}
