"""Recorded episodes as seeds: what the loop recorded becomes what the sampler would have stored."""

import dataclasses
import json
import shutil

import pytest
from support.harness_agents import OwnLoop, play_by, reply_to, said, user
from support.loop_harness import DONE, HIT, MISS, ROW, FakePool, ScriptedEngine, play, recipe
from support.pictures import png
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.errors import ReplayError
from arpo_verl.plugin.rows import SCREENSHOTS
from arpo_verl.plugin.seeding import SeedPolicy, seed_store
from arpo_verl.plugin.tool_calls import tool_parser
from arpo_verl.records.recorded import read_episodes
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.persistence import Fingerprint
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import Click, Point

LIMITS = TokenLimits(512, 1536)
BOX_REPLY = HIT  # its box tokens are special: the recorded text lacks them, the recorded tokens do not


@pytest.fixture
def seed_policy(policy):
    return make_policy(policy)


def make_policy(policy, limits=LIMITS, **agent):
    tokenizer, processor = policy
    builder = create_continuous_token_builder(tokenizer, processor=processor, hf_model_type="qwen2_5_vl")
    values = {"max_steps": 4, "max_screenshots": 4, "max_reply_tokens": 64, "model_family": "small", **agent}
    chat = ChatTokenizer.from_processor(tokenizer, processor, builder)
    return SeedPolicy(chat, GuiAgentConfig(**values), limits, {}, Fingerprint("t", "p", "q"))


def record(policy, folder, replies=(BOX_REPLY, DONE), **changes):
    """Play an episode that is recorded; veRL's output for it."""
    config = recipe({"trajectory_dir": str(folder)})
    row = {**ROW, "session_id": changes.pop("session", 0)}
    output = play(policy, ScriptedEngine(policy[0], list(replies), **changes), FakePool(), config, row)
    for path in folder.rglob("episode.json"):  # no queue to ask here, so it is not known
        path.write_text(json.dumps({**json.loads(path.read_text()), "validation": False}))
    return output


def seeded(folder, seed_policy, config=None):
    store = SuccessStore(8)
    report = seed_store(store, read_episodes(folder), seed_policy, config or ReplayConfig())
    return store.trajectories(), report


def test_a_recorded_success_becomes_the_trajectory_of_its_rollout(policy, seed_policy, tmp_path):
    output = record(policy, tmp_path)
    (trajectory,), report = seeded(tmp_path, seed_policy)
    assert list(trajectory.prompt_ids) == output.prompt_ids
    assert list(trajectory.response_ids) == output.response_ids
    assert list(trajectory.response_mask) == output.response_mask
    assert trajectory.rollout_log_probs.tolist() == pytest.approx(output.response_logprobs)
    assert list(trajectory.screenshots) == output.screenshots
    assert (trajectory.reward, trajectory.success, trajectory.num_turns, trajectory.step) == (1.0, 1.0, 4, 0)
    of_engine = {"global_steps", "min_global_steps", "max_global_steps", "spec_num_draft_tokens"}
    assert trajectory.extra_fields == {k: v for k, v in output.extra_fields.items() if k not in of_engine}
    assert (report.stored, report.with_log_probs, not report.skipped) == (1, 1, True)


def test_without_recorded_tokens_the_text_is_tokenized_and_there_are_no_log_probs(policy, seed_policy, tmp_path):
    output = record(policy, tmp_path, replies=["Thought: I click it.\nAction: click(start_box='(20,20)')", DONE])
    next(tmp_path.rglob("tokens.json")).unlink()
    (trajectory,), report = seeded(tmp_path, seed_policy)
    assert list(trajectory.response_ids) == output.response_ids
    assert list(trajectory.response_mask) == output.response_mask
    assert trajectory.rollout_log_probs is None
    assert (report.stored, report.with_log_probs) == (1, 0)


def test_tokens_of_another_tokenizer_are_not_taken(policy, seed_policy, tmp_path):
    record(policy, tmp_path)
    path = next(tmp_path.rglob("tokens.json"))
    shifted = [{**reply, "token_ids": [i + 1 for i in reply["token_ids"]]} for reply in json.loads(path.read_text())]
    path.write_text(json.dumps(shifted))
    (trajectory,), report = seeded(tmp_path, seed_policy)
    assert trajectory.rollout_log_probs is None and report.with_log_probs == 0
    replies = [i for i, m in zip(trajectory.response_ids, trajectory.response_mask, strict=True) if m]
    assert policy[0].decode(replies, skip_special_tokens=True).startswith("Thought: I click it.\nAction: click(")


def test_coordinates_of_another_image_size_are_brought_to_the_policys(policy, seed_policy, tmp_path):
    record(policy, tmp_path)
    path = next(tmp_path.rglob("episode.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "image_size": [640, 480]}))
    (trajectory,), _ = seeded(tmp_path, seed_policy)
    text = policy[0].decode(list(trajectory.response_ids), skip_special_tokens=True)
    assert "(11,10)" in text.replace(" ", "")  # (20, 20) of 640x480 on 364x252


def test_failures_malformed_replies_and_validation_are_left_out(policy, seed_policy, tmp_path):
    record(policy, tmp_path / "good", session=0)
    record(policy, tmp_path / "failed", [MISS, DONE], session=1)
    record(policy, tmp_path / "malformed", [HIT, "Action: dance()"], session=2)
    shutil.copytree(tmp_path / "good", tmp_path / "validated")
    path = next((tmp_path / "validated").rglob("episode.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "validation": True}))
    trajectories, report = seeded(tmp_path, seed_policy)
    assert len(trajectories) == 1
    assert report.skipped == {"failed": 1, "ended in a malformed reply": 1, "from validation": 1}


def test_what_is_not_whole_on_disk_is_left_out(policy, seed_policy, tmp_path):
    record(policy, tmp_path / "good", session=0)
    episode = next((tmp_path / "good").rglob("episode.json")).parent
    shutil.copytree(episode, tmp_path / "trimmed" / "click-it__u-1_1")
    (tmp_path / "trimmed" / "click-it__u-1_1" / "01.png").unlink()
    shutil.copytree(episode, tmp_path / "unfinished" / ".click-it__u-1_2-abc")
    trajectories, report = seeded(tmp_path, seed_policy)
    assert len(trajectories) == 1 and report.skipped == {"recorded without its screenshots": 1}


def test_what_does_not_fit_the_run_is_left_out_with_the_reason(policy, tmp_path, caplog):
    record(policy, tmp_path)
    for changed in ({"max_steps": 1, "max_screenshots": 1}, {"max_reply_tokens": 4}):
        trajectories, report = seeded(tmp_path, make_policy(policy, **changed))
        assert not trajectories and sum(report.skipped.values()) == 1
    trajectories, report = seeded(tmp_path, make_policy(policy, model_family="qwen25_vl"))
    assert not trajectories and report.skipped == {"does not fit this policy": 1}
    assert "must be in the grammar of qwen25_vl" in caplog.text


def test_a_reply_that_spells_an_image_is_no_seed_where_its_text_is_tokenized(policy, seed_policy, tmp_path):
    """There is no image behind it: training would end where it is replayed."""
    record(policy, tmp_path)
    path = next(tmp_path.rglob("episode.json"))
    document = json.loads(path.read_text())
    document["turns"][0]["text"] = "Thought: <|image_pad|>\nAction: click(start_box='(20,20)')"
    path.write_text(json.dumps(document))
    trajectories, report = seeded(tmp_path, seed_policy)
    assert not trajectories and report.skipped == {"does not fit this policy": 1}


def test_a_folder_without_episodes_is_told(seed_policy, tmp_path):
    with pytest.raises(ReplayError, match="no episode.json"):
        seeded(tmp_path, seed_policy)
    (tmp_path / "file").touch()
    with pytest.raises(ReplayError, match="has no recorded episodes"):
        seeded(tmp_path / "file", seed_policy)


async def never(token_ids, tools):
    raise AssertionError("no request offers tools")


async def rewriting(task, client, desktop):
    """Asks again, goes on, and begins another history that repeats what both replies said."""
    shot = desktop.observation.screenshot
    first = [await reply_to(client, [user("one", shot)]) for _ in range(2)]
    await reply_to(client, [user("one", shot), said(first[1]), user("two", shot, png("blue"))], stop=["Thought"])
    await reply_to(client, [user("so far"), said(first[0]), said(first[1]), user("three", png("blue"), shot)])
    await desktop.step(Click(Point(35, 38)))


PROGRAMS = {
    "one_row": (OwnLoop(), [MISS, HIT, DONE]),
    "windows": (OwnLoop(2, 1), [MISS, MISS, HIT, DONE]),
    "rewritten": (rewriting, ["lost", "kept", "go Thought: more", "third"]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_harness_success_becomes_the_rows_of_its_rollout(policy, tmp_path, name):
    program, replies = PROGRAMS[name]
    agent = {"trajectory_dir": str(tmp_path), "max_steps": 8}
    rows = play_by(program, policy, ScriptedEngine(policy[0], replies), agent=agent, response_length=2048)
    for path in tmp_path.rglob("episode.json"):  # no queue to ask here, so it is not known
        path.write_text(json.dumps({**json.loads(path.read_text()), "validation": False}))
    harness = {"harness": "support.harness_agents:current", "max_screenshots": None}
    seeds = make_policy(policy, TokenLimits(2048, 2048), **{**agent, **harness})
    (trajectory,), report = seeded(tmp_path, dataclasses.replace(seeds, parse_calls=never))
    stored = list(trajectory.each_row())
    assert [list(row.prompt_ids) for row in stored] == [row.prompt_ids for row in rows]
    assert [list(row.response_ids) for row in stored] == [row.response_ids for row in rows]
    assert [list(row.response_mask) for row in stored] == [row.response_mask for row in rows]
    for row, seed in zip(rows, stored, strict=True):
        assert list(seed.rollout_log_probs) == pytest.approx(row.response_logprobs)
        shown = [trajectory.screenshots[number] for number in seed.screenshots]
        assert shown == row.multi_modal_data[SCREENSHOTS]
    assert list(trajectory.screenshots) == [shot for row in rows for shot in row.screenshots]
    assert report.with_log_probs == 1


def test_what_no_harness_played_and_what_another_tokenizer_wrote_seeds_no_run_with_one(policy, tmp_path):
    record(policy, tmp_path / "own_loop")
    agent = {"trajectory_dir": str(tmp_path / "harness")}
    play_by(OwnLoop(), policy, ScriptedEngine(policy[0], [HIT, DONE]), agent=agent)
    path = next((tmp_path / "harness").rglob("episode.json"))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "validation": False}))
    seeds = make_policy(policy, TokenLimits(2048, 4096), harness="support.harness_agents:current")
    seeds = dataclasses.replace(seeds, parse_calls=never)
    assert seeded(tmp_path, seeds)[1].skipped == {"played by no harness": 1} and seeded(tmp_path, seeds)[1].stored == 1
    tokens = path.with_name("tokens.json")
    whole = json.loads(tokens.read_text())
    tokens.write_text(json.dumps([{**reply, "token_ids": [i + 1 for i in reply["token_ids"]]} for reply in whole]))
    assert seeded(tmp_path / "harness", seeds)[1].skipped == {"does not fit this policy": 1}
    tokens.write_text(json.dumps(whole))
    for turn in document["turns"]:
        turn["request"] = {"model": "policy", "row": 0, "after_messages": 3, "after_turn": "x", "messages": [{}]}
    path.write_text(json.dumps({**document, "validation": False}))
    assert seeded(tmp_path / "harness", seeds)[1].skipped == {"does not fit this policy": 1}


def test_calls_of_tools_in_other_tokens_than_were_recorded_are_no_seed(policy, tmp_path):
    tool = {"type": "function", "function": {"name": "click"}}
    call = '<tool_call>{"name": "click", "arguments": {"x": 1}}</tool_call>'

    async def program(task, client, desktop):
        await reply_to(client, [user("one", desktop.observation.screenshot)], tools=[tool])
        await desktop.step(Click(Point(35, 38)))

    play_by(program, policy, ScriptedEngine(policy[0], [call]), agent={"trajectory_dir": str(tmp_path)})
    path = next(tmp_path.rglob("episode.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "validation": False}))
    seeds = make_policy(policy, TokenLimits(2048, 4096), harness="support.harness_agents:current")
    seeds = dataclasses.replace(seeds, parse_calls=tool_parser({}, policy[0]))
    assert seeded(tmp_path, seeds)[1].stored == 1
    tokens = path.with_name("tokens.json")
    (reply,) = json.loads(tokens.read_text())
    other = [i + 1 for i in reply["token_ids"]]
    for changed in ([{**reply, "token_ids": other}], [reply, reply], []):
        tokens.write_text(json.dumps(changed))
        assert seeded(tmp_path, seeds)[1].skipped == {"does not fit this policy": 1}
