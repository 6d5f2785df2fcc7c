"""A harness plays an evaluation: by the same policies, into the same folder, as our loop does."""

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("verl")

from support.evaluation_run import DONE, HIT, TASKS, Scripted, play, pool_of, settings  # noqa: E402
from support.fake_pool import MISS, FakePool  # noqa: E402
from support.harness_agents import CURRENT, ask, reply_to, said, user  # noqa: E402
from support.loop_harness import ScriptedEngine  # noqa: E402

from arpo_verl.agent.harness.token_chat import TokenChat  # noqa: E402
from arpo_verl.agent.rollout.conversation import TokenLimits  # noqa: E402
from arpo_verl.agent.rollout.sequence import Generated  # noqa: E402
from arpo_verl.errors import ConfigError, HarnessError  # noqa: E402
from arpo_verl.plugin.settings import chat_tokenizer  # noqa: E402
from arpo_verl.records.layout import EPISODE_FILE, TOKENS_FILE  # noqa: E402
from arpo_verl.tools.evaluation.filter_run import filter_tasks  # noqa: E402
from arpo_verl.tools.evaluation.filtering import Fate  # noqa: E402
from arpo_verl.tools.evaluation.keep_rule import KeepRule  # noqa: E402
from arpo_verl.tools.evaluation.own_engine import OwnEngine  # noqa: E402
from arpo_verl.tools.evaluation.policy import Sampling  # noqa: E402
from arpo_verl.tools.evaluation.results import Trial  # noqa: E402
from arpo_verl.types import StopReason  # noqa: E402

OWN_LOOP = {"harness": "support.harness_agents:own_loop"}
CURRENT_ONE = {"harness": "support.harness_agents:current"}


class Speaking(Scripted):
    """Says the same in each episode to our loop and, in tokens, to a harness."""

    def __init__(self, policy, replies=(HIT, DONE), begun=lambda trial: None):
        super().__init__(replies, begun)
        self.tokens = chat_tokenizer(*policy, "qwen2_5_vl")

    def chat(self, config, sampling, trial):
        self.begun(trial)
        engine = ScriptedEngine(self.tokens.tokenizer, self.replies)

        async def generate(prompt_ids, images, most):
            written = await engine.generate("", prompt_ids=prompt_ids, sampling_params={"max_tokens": most})
            return Generated(tuple(written.token_ids), tuple(written.log_probs))

        return TokenChat(generate, self.tokens, config, TokenLimits(4096, 4096, 4096), None)


@pytest.fixture
def current():
    """Has a test's own program play."""
    yield CURRENT.append
    CURRENT.clear()


def records(out):
    return {(e["task_id"], e["session"]): e for e in map(json.loads, (p.read_text() for p in out.rglob(EPISODE_FILE)))}


def test_a_harness_comes_to_what_our_loop_comes_to_and_is_played_once(tmp_path, policy):
    values = {"tasks": TASKS[:2], "runs": 2}
    own = play(tmp_path / "own", Scripted(), **values)
    out = tmp_path / "harness"
    evaluated = play(out, Speaking(policy), agent=OWN_LOOP, **values)
    assert evaluated.results == own.results and not evaluated.faults
    assert evaluated.settings["harness"] == OWN_LOOP["harness"] and "harness" not in own.settings
    for key, episode in records(out).items():
        loops = records(tmp_path / "own")[key]
        assert [turn["actions"] for turn in episode["turns"]] == [turn["actions"] for turn in loops["turns"]]
        assert [turn["request"]["after_messages"] for turn in episode["turns"]] == [0, 4]
        assert len(episode["rows"]) == 1 and len(episode["screenshots"]) == len(loops["screenshots"])
    assert all(len(json.loads(path.read_text())) == 2 for path in out.rglob(TOKENS_FILE))
    assert play(out, Speaking(policy, begun=pytest.fail), agent=OWN_LOOP, **values).results == own.results


def test_a_checkpoint_says_to_a_harness_what_it_says_to_our_loop(tmp_path, model_path):
    engine = OwnEngine(Path(model_path), {"model": "m"}, None)
    said = []
    for agent in (None, OWN_LOOP):
        out = tmp_path / str(len(said))
        # A policy that knows nothing: its reply is malformed, which is its own doing.
        evaluated = play(out, engine, tasks=TASKS[:1], runs=2, sampling=Sampling(temperature=0.6), agent=agent)
        assert {result.stop_reason for result in evaluated.results} == {StopReason.PARSE_ERROR}
        said.append({key: [turn["text"].strip("\n") for turn in e["turns"]] for key, e in records(out).items()})
    assert said[0] == said[1] and len({str(texts) for texts in said[0].values()}) == 2
    other = OwnEngine(Path(model_path), {"model": "m"}, None, tool_format="qwen3_coder")
    with pytest.raises(ConfigError, match="policy.tool_format was None, now 'qwen3_coder'"):
        play(out, other, tasks=TASKS[:1], runs=2, sampling=Sampling(temperature=0.6), agent=OWN_LOOP)


def test_other_harnesses_share_no_folder_and_one_that_is_none_leaves_none(tmp_path, policy):
    play(tmp_path / "e", Speaking(policy), tasks=TASKS[:1], runs=1, agent=OWN_LOOP)
    others = {
        "harness was": None,
        "harness_shell was False, now True": {**OWN_LOOP, "harness_shell": True},
        "harness_env_sha256 was": {**OWN_LOOP, "harness_env": {"A": "b"}},
    }
    for what, other in others.items():
        with pytest.raises(ConfigError, match=what):
            play(tmp_path / "e", Speaking(policy), tasks=TASKS[:1], runs=1, agent=other)
    with pytest.raises(ConfigError, match="cannot be imported"):
        play(tmp_path / "none", Speaking(policy), agent={"harness": "nowhere:none"})
    assert not (tmp_path / "none").exists()


def test_a_program_that_breaks_is_a_fault_and_one_that_always_breaks_ends_the_evaluation(tmp_path, policy, current):
    async def breaking(task, client, desktop):
        await reply_to(client, [user(task.instruction, desktop.observation.screenshot)])
        if task.task_id != "a":
            raise KeyError("missing")

    current(breaking)
    evaluated = play(tmp_path / "some", Speaking(policy), tasks=TASKS[:2], runs=2, agent=CURRENT_ONE)
    assert {result.task_id for result in evaluated.results} == {"a"}
    assert {(fault.task_id, fault.error) for fault in evaluated.faults} == {("b", "HarnessError")}
    with pytest.raises(HarnessError, match="missing"):
        play(tmp_path / "all", Speaking(policy), tasks=TASKS[1:], runs=4, desktops=1, agent=CURRENT_ONE)


def test_a_program_whose_own_task_was_cancelled_is_a_fault(tmp_path, policy, current):
    async def cancelled(task, client, desktop):
        await reply_to(client, [user(task.instruction)])
        raise asyncio.CancelledError

    current(cancelled)
    evaluated = play(tmp_path, Speaking(policy), tasks=TASKS[:1], runs=1, agent=CURRENT_ONE)
    assert [fault.error for fault in evaluated.faults] == ["HarnessError"] and not evaluated.results


def test_whatever_is_asked_leaves_a_record_that_can_be_read(tmp_path, policy, current, monkeypatch):
    """Without one the evaluation would end, and come to the same end each time that it is resumed."""
    monkeypatch.setattr("arpo_verl.agent.harness.client.MOST_RECORD_BYTES", 5_000)
    deep = "[" * 97 + "]" * 97
    call = {"id": "a", "type": "function", "function": {"name": "x", "arguments": deep}}
    tool = {"type": "function", "function": {"name": "x", "parameters": json.loads(deep[10:-10])}}

    async def program(task, client, desktop):
        first = [user(task.instruction)]
        assert (await ask(client, first, tools=[tool]))[0] == 400
        assert (await ask(client, [user("word " * 1_020)]))[0] == 413
        await reply_to(client, first)
        await reply_to(client, [*first, {**said(""), "tool_calls": [call]}, user("on")])

    current(program)
    (result,) = play(tmp_path, Speaking(policy), tasks=TASKS[:1], runs=1, agent=CURRENT_ONE).results
    assert (result.turns, result.stop_reason) == (2, StopReason.FINISHED)
    (episode,) = records(tmp_path).values()
    (recorded,) = episode["turns"][1]["request"]["messages"][1]["tool_calls"]
    assert recorded["function"]["arguments"] == deep


def test_a_smaller_budget_is_played_apart_and_ends_at_its_own_limit(tmp_path, policy):
    begun, agent = [], {**OWN_LOOP, "max_screenshots": 5}
    speaking = Speaking(policy, [MISS, HIT, DONE], begun.append)
    evaluated = play(tmp_path, speaking, tasks=TASKS[:1], runs=1, budgets=(1, 3, 8), agent=agent)
    assert begun == [Trial("a", 0, 8), Trial("a", 0, 1)]
    found = [(result.budget, result.success, result.turns, result.stop_reason.value) for result in evaluated.results]
    assert found == [(1, 0.0, 1, "step_limit"), (3, 1.0, 3, "finished"), (8, 1.0, 3, "finished")]


def test_a_filter_has_the_harness_play_once_it_has_done_nothing_itself(tmp_path, policy):
    rule, how = KeepRule.parse("1 <= successes <= 3", 4), settings(desktops=1, agent=OWN_LOOP)
    with pool_of(FakePool()):
        filtered = filter_tasks(tmp_path, TASKS[:1], rule, Speaking(policy), how, error=0.0, group_size=4)
    assert [(task.fate, task.runs) for task in filtered.tasks] == [(Fate.TOO_MANY, 4)]
