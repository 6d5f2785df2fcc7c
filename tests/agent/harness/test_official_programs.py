"""Agents that are not ours, unmodified: their own `predict` asks, and what the policy wrote is trained.

They run in an environment of their own, see `support/agents_environment.py`.
"""

import pytest
from support.agents_environment import PROGRAM, PYTHON, VARIABLES, why_not
from support.loop_harness import FakePool, ScriptedEngine, play, recipe

pytestmark = pytest.mark.release


def played(policy, agent, replies, **options):
    """An episode that the agent plays; the rows that are trained, the desktop's actions and the engine's calls."""
    if problem := why_not(agent):
        pytest.skip(problem)
    engine, pool = ScriptedEngine(policy[0], replies), FakePool()
    harness = {"harness": [PYTHON, PROGRAM, agent], "harness_env": VARIABLES, "harness_memory_mb": 4096}
    values = {"max_steps": 8, "max_screenshots": None, "max_reply_tokens": 512, **harness, **options}
    output = play(policy, engine, pool, recipe(values, prompt_length=65536, response_length=65536))
    rows = output if isinstance(output, list) else [output]
    assert not engine.replies
    return rows, pool.desktops[0].actions, engine.calls


def trained(rows, tokenizer):
    """What is trained, in order."""
    stretches = [[token for token, bit in zip(row.response_ids, row.response_mask, strict=True) if bit] for row in rows]
    return [tokenizer.decode(stretch, skip_special_tokens=True) for stretch in stretches]


def test_osworlds_ui_tars_agent(policy, tokenizer):
    """Its history marks boxes that the policy did not write, so each reply begins a row, behind its own words."""
    replies = [
        "Thought: I miss.\nAction: click(start_box='(300,200)')",
        "Thought: I click it.\nAction: click(start_box='(20,20)')",
        "Thought: Done.\nAction: finished(content='done')",
    ]
    rows, actions, calls = played(policy, "uitars15", replies)
    assert [row.reward_score for row in rows] == [1.0] * 3
    assert len(actions) == 2 and "".join(trained(rows, tokenizer)) == "".join(replies)
    assert [len(call["images"]) for call in calls] == [1, 2, 3]
    assert all(call["temperature"] == 1.0 for call in calls)  # the recipe's, not the agent's 0
    assert "Click the red square." in tokenizer.decode(calls[0]["prompt_ids"])


def _computer_use(arguments):
    return f'Action: I do it.\n<tool_call>\n{{"name": "computer_use", "arguments": {arguments}}}\n</tool_call>'


def test_osworlds_qwen3_vl_agent(policy, tokenizer):
    replies = [
        _computer_use('{"action": "left_click", "coordinate": [50, 60]}'),
        _computer_use('{"action": "terminate", "status": "success"}'),
    ]
    rows, actions, calls = played(policy, "qwen3vl", replies)
    assert [row.reward_score for row in rows] == [1.0]
    assert len(actions) == 1 and "".join(trained(rows, tokenizer)) == "".join(replies)
    assert [len(call["images"]) for call in calls] == [1, 2]


def test_agent_s(policy, tokenizer):
    """It checks an action by making it, so the grounder is asked twice; its replies are not trained."""
    click = '(Next Action)\nI click.\n(Grounded Action)\n```python\nagent.click("The red square.", 1, "left")\n```'
    done = "(Grounded Action)\n```python\nagent.done()\n```"
    replies = [click, "(40, 50)", "(40, 50)", done]
    rows, actions, calls = played(policy, "agent_s", replies)
    assert [row.reward_score for row in rows] == [1.0]
    assert len(actions) == 1 and "".join(trained(rows, tokenizer)) == click + done
    assert [len(call["images"]) for call in calls] == [1, 1, 1, 2]
