"""What the agent loop does when the pool gives it no whole episode."""

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from support.loop_harness import DONE, HIT, FakePool, ScriptedEngine, play, recipe

from arpo_verl.desktops.fake import FakeScript
from arpo_verl.desktops.pool import attempts
from arpo_verl.errors import (
    DesktopBootError,
    DesktopSetupError,
    DesktopUnclearError,
    EvaluatorError,
)


@pytest.fixture
def rests(monkeypatch):
    """Sleeps of the agent loop, noted instead of slept."""
    slept = []

    async def note(seconds):
        slept.append(seconds)

    monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=note))
    return slept


def with_backoff(seconds):
    return OmegaConf.merge(recipe(), {"environment": {"retry_backoff_s": seconds}})


def test_the_rest_between_attempts_doubles_and_none_follows_the_last(policy, tokenizer, rests):
    pool = FakePool(FakeScript(fail={"reset": [1]}))
    with pytest.raises(DesktopSetupError):
        play(policy, ScriptedEngine(tokenizer, []), pool, with_backoff(0.5))
    assert rests == [0.5, 1.0] and len(pool.desktops) == 3


def test_no_desktop_is_held_during_the_rest(policy, tokenizer, monkeypatch):
    pool, leased = FakePool(FakeScript(fail={"reset": [1]}), FakeScript()), []

    async def note(seconds):
        leased.append(pool.leased)

    monkeypatch.setattr(attempts, "asyncio", SimpleNamespace(sleep=note))
    assert play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), pool, with_backoff(1)).reward_score == 1.0
    assert leased == [0]


@pytest.mark.parametrize(("call", "first"), [("reset", []), ("evaluate", ["Action: dance()"])])
def test_a_desktop_that_ends_before_any_action_was_not_ended_by_the_policy(policy, tokenizer, rests, call, first):
    """In its set-up it was an IndexError, which no retry takes. After a malformed reply alone it was a 0."""
    pool = FakePool(FakeScript(end={call: [1]}), FakeScript())
    assert play(policy, ScriptedEngine(tokenizer, [*first, HIT, DONE]), pool, with_backoff(1)).reward_score == 1.0
    assert len(pool.desktops) == 2


def test_a_lease_without_a_desktop_is_an_attempt(policy, tokenizer):
    asked = []

    class Refusing(FakePool):
        @asynccontextmanager
        async def lease(self, task_id):
            asked.append(task_id)
            raise DesktopBootError("no desktop for you")
            yield

    pool = Refusing()
    with pytest.raises(DesktopBootError, match="no desktop for you"):
        play(policy, ScriptedEngine(tokenizer, []), pool)
    assert asked == ["click-it"] * 3


def test_the_record_names_the_desktop_and_its_node(policy, tokenizer, tmp_path):
    play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), config=recipe({"trajectory_dir": str(tmp_path)}))
    (path,) = tmp_path.glob("*/*/episode.json")
    assert json.loads(path.read_text())["desktop"] == "fake on here"


@pytest.mark.parametrize("call", ["step", "evaluate"])
def test_a_policy_that_ended_its_own_desktop_scores_0_once_and_gets_no_second_try(policy, tokenizer, rests, call):
    pool = FakePool(FakeScript(end={call: [1]}))
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), pool, with_backoff(0.5))
    fields = output.extra_fields
    assert (output.reward_score, fields["stop_reason"], fields["success"]) == (0.0, "desktop_ended", 0.0)
    assert fields["reward_extra_info"]["desktop_ended"] == 1.0
    assert (len(pool.desktops), rests) == (1, [])
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)


@pytest.mark.parametrize("error", [DesktopUnclearError, EvaluatorError])
def test_losses_that_may_be_the_policys_doing_are_retried_and_counted_with_the_episode(policy, tokenizer, error):
    """A judged file of garbage breaks 10 of 25 metrics tried: three tries in validation, which nothing told."""

    class Unclear(FakePool):
        @asynccontextmanager
        async def lease(self, task_id):
            async with super().lease(task_id) as desktop:
                if len(self.desktops) < 3:
                    raise error("the guest does not answer")
                yield desktop

    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), Unclear())
    assert output.extra_fields["reward_extra_info"]["unclear_losses"] == 2.0 and output.reward_score == 1.0
