"""The reward functions of docs/reward.md: the page's own code, loaded as veRL loads it, called by the agent loop."""

import ast

import pytest
from support import documents
from support.composed import compose_recipe
from support.fake_pool import DONE, MISS, FakePool
from support.loop_harness import ScriptedEngine, play, recipe
from verl.trainer.ppo.reward import get_custom_reward_fn

import arpo_verl
from arpo_verl.errors import EndpointError

OF_THE_VERDICT, OF_A_JUDGE = documents.code("docs/reward.md")


@pytest.fixture
def section(tmp_path):
    """Writes the page's module; returns the recipe's section that names it."""

    def write(code):
        (tmp_path / "my_reward.py").write_text(code)
        return {"path": str(tmp_path / "my_reward.py"), "name": "judge", "reward_kwargs": {"bonus": 0.2}}

    return write


@pytest.mark.parametrize(("replies", "bonus"), [([DONE], 0.2), ([MISS] * 6 + [DONE], 0.0)])
def test_a_short_episode_gets_the_bonus_that_the_recipe_says(policy, tokenizer, section, replies, bonus):
    config = recipe({"max_steps": 8, "max_screenshots": 8}, response_length=4096, reward=section(OF_THE_VERDICT))
    output = play(policy, ScriptedEngine(tokenizer, replies), config=config)
    info = output.extra_fields["reward_extra_info"]
    assert output.reward_score == info["success"] + bonus and info["short"] == (bonus > 0)


def test_a_judge_that_gives_no_answer_costs_its_episode_alone(policy, tokenizer, section):
    asked = "\n\nasync def ask_the_judge(text):\n    raise TimeoutError\n"
    chosen = section(OF_A_JUDGE + asked)
    del chosen["reward_kwargs"]
    pool = FakePool()
    with pytest.raises(EndpointError, match="the judge gave no answer"):
        play(policy, ScriptedEngine(tokenizer, [DONE]), pool, recipe(reward=chosen))
    assert pool.refused == []


@pytest.mark.parametrize("code", [OF_THE_VERDICT, OF_A_JUDGE])
def test_they_import_public_names_alone(code):
    for node in ast.walk(ast.parse(code)):
        assert not isinstance(node, ast.Import)
        if isinstance(node, ast.ImportFrom):
            assert node.module in ("arpo_verl", "arpo_verl.reward")
            public = arpo_verl.__all__ if node.module == "arpo_verl" else ("compute_score",)
            assert {alias.name for alias in node.names} <= set(public)


def test_the_pages_command_composes_and_its_function_gets_the_options(section, monkeypatch, tmp_path):
    section(OF_THE_VERDICT)
    monkeypatch.chdir(tmp_path)
    (command,) = documents.commands("docs/reward.md")
    config = compose_recipe(*command.split()[2:])
    function = get_custom_reward_fn(config)
    extra_info = {"success": 1.0, "credit": 1.0, "format_error": 0.0, "num_turns": 5}
    assert function("os", "", None, extra_info) == {
        **{"score": 1.2, "success": 1.0, "format_error": 0.0},
        **{"short": True},
    }
