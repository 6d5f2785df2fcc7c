"""A reward that nobody can train on ends the run, from the agent loop through the pool to the sampler."""

import math

import pytest
import torch
from support.fake_pool import DONE, FakePool
from support.loop_harness import ScriptedEngine, play, recipe
from support.simulated_pool import Host, Simulation

from arpo_verl.desktops.fake import FakeEnvironment
from arpo_verl.errors import ConfigError, EndpointError, EvaluatorError
from arpo_verl.plugin import agent_loop
from arpo_verl.types import Evaluation, finite_number


@pytest.fixture
def reward_function(tmp_path):
    """Writes a user's reward function; returns the recipe that names it."""

    def write(body, *, is_async=False):
        path = tmp_path / "my_reward.py"
        path.write_text(
            "import math\nfrom arpo_verl import EndpointError\n"
            f"{'async ' * is_async}def judge(data_source, solution_str, ground_truth, extra_info):\n    {body}\n"
        )
        return recipe(reward={"path": str(path), "name": "judge"})

    return write


def test_a_tensor_of_one_element_is_a_number_and_others_are_none():
    for value in (torch.tensor(1.0), torch.tensor([[1]]), torch.ones(1, dtype=torch.bfloat16, requires_grad=True)):
        assert finite_number(value) == 1.0
    for value in (torch.ones(2), torch.ones(0), torch.tensor(math.nan), torch.tensor([-math.inf]), torch.tensor(1j)):
        assert finite_number(value) is None


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return math.nan", r"judge of \S*my_reward.py returned values for task click-it .*\n.*finite number, got nan"),
        ("return {'score': 1.0, 'reward': 1.0, 'parts': {}}", "(?s)cannot use the name `reward`: .*`parts` must be"),
        ("return extra_info['verdict']", r"judge of \S*my_reward.py raised KeyError\('verdict'\) for task click-it"),
    ],
)
def test_a_wrong_reward_function_ends_the_run_and_is_not_tried_again(
    policy, tokenizer, reward_function, body, reason, is_async
):
    pool = FakePool()
    with pytest.raises(ConfigError, match=reason) as told:
        play(policy, ScriptedEngine(tokenizer, [DONE]), pool, reward_function(body, is_async=is_async))
    assert pool.refused == [str(told.value)] and len(pool.desktops) == 1


def test_a_reward_function_whose_server_fails_costs_its_episode_alone(policy, tokenizer, reward_function):
    pool = FakePool()
    with pytest.raises(EndpointError, match="the judge is away"):
        play(
            policy, ScriptedEngine(tokenizer, [DONE]), pool, reward_function("raise EndpointError('the judge is away')")
        )
    assert pool.refused == []


def test_numpy_numbers_are_rewards(policy, tokenizer, reward_function):
    """`np.float32(1)` was refused."""
    body = "import numpy as np; return {'score': np.float32(0.5), 'length': np.int64(3)}"
    output = play(policy, ScriptedEngine(tokenizer, [DONE]), config=reward_function(body))
    assert output.reward_score == 0.5 and type(output.reward_score) is float
    assert output.extra_fields["reward_extra_info"]["length"] == 3.0


def test_an_evaluator_that_returns_nan_gave_no_verdict(policy, tokenizer, monkeypatch):
    """A desktop of a user's own may give it: a fault, tried on other desktops, then the session is lost."""
    monkeypatch.setattr(FakeEnvironment, "evaluate", lambda self: Evaluation(math.nan))
    pool = FakePool()
    with pytest.raises(EvaluatorError, match="number from 0 to 1, got nan"):
        play(policy, ScriptedEngine(tokenizer, [DONE] * 3), pool)
    assert len(pool.desktops) == 3 and pool.refused == []


def test_after_the_first_such_reward_nobody_plays_and_the_pool_says_why(monkeypatch):
    """veRL logged each error as one lost session; the asynchronous modes drew other prompts, without end."""
    simulation = Simulation(monkeypatch, [Host("a", 2)])

    async def score(function, episode, solution, row, *_):
        raise ConfigError(f"a reward must be a finite number, got nan for {row['extra_info']['task_id']}")

    monkeypatch.setattr(agent_loop, "score_episode", score)

    async def look(simulation):
        while not (refusal := await simulation.actor.refusal()):
            await agent_loop.asyncio.sleep(1)
        simulation.refusal = refusal

    outcomes = simulation.run([f"task-{number}" for number in range(8)], beside=look)
    assert {type(outcome) for outcome in outcomes} == {ConfigError}
    assert simulation.refusal.startswith("a reward must be a finite number, got nan for task-")
    assert sum(call == "reset" for call, _ in simulation.hosts["a"].calls) <= 4, "those who waited got no desktop"
    assert sum(str(outcome) == simulation.refusal for outcome in outcomes) >= 5
