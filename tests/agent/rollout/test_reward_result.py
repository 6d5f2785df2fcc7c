"""What a reward function may return, and what is made of what it must not."""

import asyncio
import inspect
import math
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from arpo_verl.agent.rollout.scoring import RESERVED, read_result, score_episode
from arpo_verl.errors import ConfigError, EndpointError
from arpo_verl.reward import compute_score
from arpo_verl.types import StopReason, finite_number

RECORDED = {"success": 0.25, "format_error": 0.0, "desktop_ended": 0.0, "unclear_losses": 1.0}


def judge(**_):
    """Stands for a user's function."""


def read(result):
    return read_result(judge, "click-it", result, RECORDED)


NUMPYS_ONES = [np.float32(1), np.float64(1), np.int64(1), np.bool_(True), np.array(1.0), np.array([1.0], np.float16)]
NO_NUMBERS = [math.nan, math.inf, -math.inf, 10**400, 1e39, "1", "", [1.0], (1.0,), 1j, Decimal(1), b"1", {1.0}]
NO_NUMBERS += [np.ones(2), np.ones(0), np.array(["1"]), np.complex64(1), np.float32("nan"), np.array([-math.inf])]


@pytest.mark.parametrize("value", [1, 1.0, True, Fraction(1), *NUMPYS_ONES])
def test_a_number_is_a_number(value):
    reward, extra = read({"score": value, "mine": value})
    assert read(value) == (1.0, RECORDED) and (reward, extra["mine"]) == (1.0, 1.0)
    assert type(reward) is type(extra["mine"]) is type(read(value)[0]) is float


@pytest.mark.parametrize("value", [*NO_NUMBERS, None, object()])
def test_what_is_no_finite_number_is_no_reward(value):
    """NaN made the advantages of the whole group NaN, and veRL skipped the mini-batch's update. 1e39 is infinite in the
    trainer's float32."""
    assert finite_number(value) is None
    for result in (value, {"score": value}):
        with pytest.raises(ConfigError, match="judge returned values for task click-it .*\n- the reward .* fi") as told:
            read(result)
        assert repr(value)[:100] in str(told.value)


def test_other_values_are_numbers_text_or_none_and_a_score_must_be_there():
    more = {"length": 3.0, "why": "seen", "judged": None, "pred": "A"}
    assert read({"score": 1, **more, "length": 3})[1] == RECORDED | more
    with pytest.raises(ConfigError, match="must be a finite number, got None"):
        read({"mine": 1.0})


def test_all_that_is_wrong_is_in_one_message():
    bad = {"score": math.nan, "reward": 1.0, "acc": 0.5, "success": 0.75, "step": 3, 7: 1.0}
    bad |= {"parts": {"a": 1}, "list": [1.0], "spread": math.inf, "fine": 1.0}
    with pytest.raises(ConfigError) as told:
        read(bad)
    message = str(told.value)
    for name in bad:
        assert (f"`{name}`" in message) == (name != "fine"), name
    assert "the agent loop sets `success` itself, to 0.25 here, got 0.75" in message
    assert "`parts` must be a finite number, text or None, got {'a': 1}" in message
    assert f"`acc`: {RESERVED['acc']}\n" in message and "`7`: it must be text" in message


def test_a_function_may_repeat_what_the_loop_records():
    """As one does that calls `compute_score` and changes the score."""
    ours = compute_score("embedded", "", None, {"success": 0.25, "format_error": 0.0})
    assert read({**ours, "score": 2}) == (2.0, RECORDED)
    assert read({"score": 2, "success": 0.25 + 1e-8}) == (2.0, RECORDED)


def test_a_long_value_is_shortened():
    with pytest.raises(ConfigError) as told:
        read("x" * 10**6)
    assert len(str(told.value)) < 500


EPISODE = SimpleNamespace(
    task=SimpleNamespace(task_id="click-it"),
    success=0.0,
    share=None,
    format_error=False,
    stop_reason=StopReason.FINISHED,
    turns=(),
)


def score(function):
    return asyncio.run(score_episode(function, EPISODE, "", {}))


def functions(body):
    """`body` as a function, and as a coroutine function."""

    async def coroutine(**arguments):
        return body(**arguments)

    return [body, coroutine]


@pytest.mark.parametrize(
    "error", [KeyError("verdict"), StopIteration(), ZeroDivisionError(), TimeoutError("no answer")]
)
def test_a_function_that_raises_is_named(error):
    """A StopIteration was waited for without end; any other counted as one lost session, and then the next."""

    def broken(**_):
        raise error

    for function in functions(broken):
        assert inspect.iscoroutinefunction(function) == (function is not broken)
        with pytest.raises(ConfigError, match="the reward function .* raised .* for task click-it.*EndpointError"):
            score(function)


def test_a_function_whose_server_fails_can_say_so():
    def judged_elsewhere(**_):
        raise EndpointError("the judge is away")

    for function in functions(judged_elsewhere):
        with pytest.raises(EndpointError, match="the judge is away"):
            score(function)


def test_its_value_is_checked_whether_it_is_a_coroutine_or_not():
    for function in functions(lambda **_: {"score": math.nan, "acc": 1}):
        with pytest.raises(ConfigError, match="(?s)got nan.*`acc`"):
            score(function)
