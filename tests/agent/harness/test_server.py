"""What a program gets of the endpoint, and what of it is trained."""

import asyncio
import gzip
import itertools
import json
from operator import itemgetter
from types import SimpleNamespace

import pytest
from support.harness_agents import CURRENT, ask, play_by, post, reply_to, said, user
from support.loop_harness import DONE, HIT, MISS, ROW, FakePool, ScriptedEngine, make_loop, recipe
from support.pictures import png
from verl.experimental.agent_loop.tool_parser import ToolParser

from arpo_verl.agent.harness.client import HarnessClient
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.desktops.fake import FakeScript
from arpo_verl.errors import (
    ActionParseError,
    ConfigError,
    DesktopLostError,
    GenerationError,
    HarnessError,
    RequestError,
)
from arpo_verl.types import Click, Fail, Finish, Point

FETCHED = {"type": "image_url", "image_url": "http://host/x.png"}
TOOL = {"type": "function", "function": {"name": "click", "parameters": {"type": "object", "properties": {}}}}
HIT_POINT = Point(35, 38)
ONE, TWO = user("one"), user("two")


def trained_texts(rows, tokenizer):
    """The text of each stretch that is trained, row by row."""
    texts = []
    for row in rows:
        runs = itertools.groupby(zip(row.response_ids, row.response_mask, strict=True), key=itemgetter(1))
        written = ([token for token, _ in run] for bit, run in runs if bit)
        texts.append([tokenizer.decode(run, skip_special_tokens=True) for run in written])
    return texts


def played(policy, tokenizer, program, replies, pool=None, agent=None, **lengths):
    engine = ScriptedEngine(tokenizer, replies)
    rows = play_by(program, policy, engine, pool, agent, **lengths)
    return rows, trained_texts(rows, tokenizer), engine


@pytest.mark.parametrize(
    ("asked", "replies", "trained", "turns"),
    [
        # No action: still evaluated and trained. The endpoint reads no actions, so what ends an episode is a text too.
        ([[ONE], [TWO]], [DONE, "I would rather not."], [[DONE], ["I would rather not."]], 2),
        # A rewritten history begins another row, and none weighs more for it.
        ([[ONE], [ONE, said(" a\n"), TWO], [user("a summary"), TWO]], ["a", "b", "c"], [["a", "b"], ["c"]], 3),
        # Retries are answered anew, and the last alone is trained; the engine wrote three.
        ([[ONE], [ONE], [ONE, said("kept"), TWO]], ["lost", "kept", "second"], [["kept", "second"]], 3),
        # A side request is answered and not trained.
        ([("policy-untrained", TWO), [ONE]], ["aside", "first"], [["first"]], 1),
    ],
    ids=["no action", "rewritten", "retried", "aside"],
)
def test_each_reply_that_a_program_went_on_with_is_trained_once(policy, tokenizer, asked, replies, trained, turns):
    async def program(task, client, desktop):
        for one, reply in zip(asked, replies, strict=True):
            model, messages = (one[0], [*one[1:]]) if isinstance(one, tuple) else ("policy", one)
            assert await reply_to(client, messages, model=model) == reply

    rows, texts, engine = played(policy, tokenizer, program, replies)
    assert texts == trained and {row.reward_score for row in rows} == {0.0}
    assert [row.extra_fields["num_turns"] for row in rows] == [turns] * len(rows)
    assert {(row.extra_fields["stop_reason"], row.extra_fields["format_error"]) for row in rows} == {("finished", 0.0)}
    length = dict(zip(replies, (len(ids) for ids, _ in engine.written), strict=True))
    assert [sum(row.response_mask) for row in rows] == [sum(map(length.get, row)) for row in trained]


def test_actions_are_done_and_the_verdict_is_the_desktops(policy, tokenizer):
    pool = FakePool()

    async def program(task, client, desktop):
        await reply_to(client, [user("?", desktop.observation.screenshot)])
        await desktop.step(Click(HIT_POINT))
        await desktop.step(Fail())
        await desktop.step(Click(HIT_POINT))

    rows, _, _ = played(policy, tokenizer, program, [HIT], pool)
    assert pool.desktops[0].actions == [Click(HIT_POINT), Fail()]
    assert rows[0].extra_fields["stop_reason"] == "failed" and pool.leased == 0


def test_a_stop_word_ends_the_reply_and_what_is_behind_is_not_trained(policy, tokenizer):
    async def program(task, client, desktop):
        text = await reply_to(client, [ONE], stop=["Observation:", "###"])
        assert text == "Thought: go.\n"
        await reply_to(client, [ONE, said(text), TWO])

    rows, ((first, second),), _ = played(
        policy, tokenizer, program, ["Thought: go.\nObservation: made up ### and so on", "second"]
    )
    assert first.startswith("Thought: go.\nObservation:") and "made up" not in first and second == "second"


def test_calls_of_tools_are_read_by_verls_parser_and_the_row_goes_on(policy, tokenizer):
    call = '<tool_call>\n{"name": "click", "arguments": {"x": 1}}\n</tool_call>'

    async def program(task, client, desktop):
        (choice,) = (await ask(client, [ONE], tools=[TOOL]))[1]["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (made,) = (message := choice["message"])["tool_calls"]
        assert made["function"]["name"] == "click" and json.loads(made["function"]["arguments"]) == {"x": 1}
        made["function"]["arguments"] = '{"x":1}'  # a client writes the arguments anew
        answer = {"role": "tool", "tool_call_id": made["id"], "content": "done"}
        await reply_to(client, [ONE, message, answer], tools=[TOOL])

    _, texts, _ = played(policy, tokenizer, program, [f"I click. {call}", "second"])
    assert texts == [[f"I click. {call}", "second"]]


@pytest.mark.parametrize("reply", [HIT, '<tool_call>{"name": "click", "argu</tool_call>'])
def test_a_reply_without_a_call_reads_the_same_whether_tools_are_offered_or_not(policy, tokenizer, reply):
    async def program(task, client, desktop):
        alone = await reply_to(client, [ONE])
        assert alone and await reply_to(client, [TWO], tools=[TOOL]) == alone

    played(policy, tokenizer, program, [reply, reply])


def test_half_a_character_in_a_call_can_be_sent_back(policy, tokenizer):
    """Refused, it would drop the episode: the policy could so escape a 0."""
    call = '<tool_call>{"name": "click", "arguments": {"x": "\\ud800"}}</tool_call>'

    async def program(task, client, desktop):
        message = (await ask(client, [ONE], tools=[TOOL]))[1]["choices"][0]["message"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"x": "?"}
        await reply_to(client, [ONE, message, user("on")], tools=[TOOL])
        # Another program's escape of it, which no parser of ours has read.
        message["tool_calls"][0]["function"]["arguments"] = '{"x": "\\ud800"}'
        await reply_to(client, [ONE, message, user("on")], tools=[TOOL])

    assert played(policy, tokenizer, program, [call, "second", "third"])[1] == [[call, "second"], ["third"]]


def test_a_reply_that_verls_parser_chokes_on_is_trained_all_the_same(policy, tokenizer, monkeypatch):
    class Choking:
        async def extract_tool_calls(self, ids, tools):
            raise KeyError("name")

    monkeypatch.setattr(ToolParser, "get_tool_parser", lambda name, tokenizer: Choking())

    async def program(task, client, desktop):
        assert await reply_to(client, [ONE], tools=[TOOL]) == "Hello."

    assert played(policy, tokenizer, program, ["Hello."])[1] == [["Hello."]]


def test_a_packed_body_is_none(policy, tokenizer):
    async def program(task, client, desktop):
        body = gzip.compress(json.dumps({"messages": [ONE]}).encode())
        assert (await post(client, body, **{"Content-Encoding": "gzip"}))[0] == 400
        await reply_to(client, [ONE])

    played(policy, tokenizer, program, ["Hello."])


@pytest.mark.parametrize("with_usage", [False, True])
def test_a_stream_is_one_burst(policy, tokenizer, with_usage):
    """Only who asks for it gets a chunk without a choice: others read the first choice of each."""

    async def program(task, client, desktop):
        body = {"messages": [ONE], "stream": True, "stream_options": {"include_usage": with_usage}}
        events = (await post(client, json.dumps(body)))[1].split("\n\n")
        *chunks, done = [event.removeprefix("data: ") for event in events if event]
        chunks = [json.loads(chunk) for chunk in chunks]
        assert done == "[DONE]"
        assert [chunk["choices"] == [] for chunk in chunks] == [False, False, *[True] * with_usage]
        assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == "Hello."
        assert chunks[1]["choices"][0]["finish_reason"] == "stop"
        assert not with_usage or chunks[2]["usage"]["completion_tokens"] > 0

    played(policy, tokenizer, program, ["Hello."])


def test_a_token_opens_its_own_episode_alone(policy, tokenizer):
    tokens = []

    async def program(task, client, desktop):
        tokens.append(client.token)
        for token in ("forged", "", tokens[0] if len(tokens) > 1 else "x"):
            status, answer = await ask(client, [ONE], token=token or " ")
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        await reply_to(client, [ONE])

    for _ in range(2):
        _, _, engine = played(policy, tokenizer, program, ["Hello."])
        assert len(engine.calls) == 1
    assert len(set(tokens)) == 2


def test_a_request_that_cannot_be_answered_says_why_and_costs_no_turn_of_the_engine(policy, tokenizer):
    refused = [
        ([], "Expected `array` of length >= 1"),
        ([user("<|image_pad|>")], "one image placeholder, got 1 for 0"),
        ([user("<|vision_start|><|video_pad|><|vision_end|>")], "no message may hold <|video_pad|>"),
        ([user("x", b"no image")], "an image cannot be shown"),
        ([{"role": "user", "content": [FETCHED]}], "an image must be a data URL"),
        ([{"role": "user", "content": [{**FETCHED, "image_url": "\ud800"}]}], "an image must be a data URL"),
    ]

    async def program(task, client, desktop):
        for messages, what in refused:
            status, answer = await ask(client, messages)
            assert status == 400 and what in answer["error"]["message"], answer
        await reply_to(client, [ONE])

    _, texts, engine = played(policy, tokenizer, program, ["Hello."])
    assert texts == [["Hello."]] and len(engine.calls) == 1


def test_an_image_is_kept_once_however_many_requests_show_it(policy, tokenizer):
    async def program(task, client, desktop):
        shot = desktop.observation.screenshot
        for number in range(3):
            await reply_to(client, [user(f"{number}", shot, shot)])
        assert len(client.images) == 1

    rows, _, engine = played(policy, tokenizer, program, ["a", "b", "c"])
    assert [len(call["images"]) for call in engine.calls] == [2, 2, 2]
    assert sum(len(row.screenshots) for row in rows) == 2  # [s s], and of each row behind it the same two


def test_turns_and_tokens_end_an_episode_as_in_our_loop(policy, tokenizer):
    async def endless(task, client, desktop):
        messages = [user("go", desktop.observation.screenshot)]
        while True:
            messages += [said(await reply_to(client, messages)), user("more", desktop.observation.screenshot)]

    rows, texts, engine = played(policy, tokenizer, endless, [MISS] * 9, agent={"max_steps": 3, "max_screenshots": 3})
    assert texts == [[MISS] * 3] and len(engine.calls) == 3
    assert rows[-1].extra_fields["stop_reason"] == "step_limit"

    async def at_once(task, client, desktop):
        await asyncio.gather(*(ask(client, [user(f"{n}", desktop.observation.screenshot)]) for n in range(4)))

    rows, texts, _ = played(policy, tokenizer, at_once, [MISS] * 4, agent={"max_steps": 2})
    assert texts == [[MISS]] * 2
    rows, _, _ = played(policy, tokenizer, endless, [MISS] * 4, prompt_length=256, response_length=256)
    assert rows[-1].extra_fields["stop_reason"] == "token_limit"


def test_a_first_prompt_that_does_not_fit_is_the_recipes_fault(policy, tokenizer):
    async def program(task, client, desktop):
        await reply_to(client, [user("go", desktop.observation.screenshot)])

    pool = FakePool()
    with pytest.raises(ConfigError, match="must fit into 150 tokens: in training data.max_prompt_length"):
        played(policy, tokenizer, program, [], pool, prompt_length=80, response_length=70)
    assert pool.refused


def test_a_flood_of_text_is_not_tokenized_and_ends_its_own_episode_alone(policy, tokenizer, monkeypatch):
    tokenized, pool, flood = [], FakePool(), user("x" * 150_000)
    conversation = ChatTokenizer.conversation

    def counted(self, messages, *args):
        tokenized.append(len(str(messages)))
        return conversation(self, messages, *args)

    monkeypatch.setattr(ChatTokenizer, "conversation", counted)
    engine = ScriptedEngine(tokenizer, ["short", "first"])
    config = recipe({"harness": "support.harness_agents:current"}, prompt_length=2048, response_length=2048)

    async def short(task, client, desktop):
        await reply_to(client, [ONE])

    async def side_then_first(task, client, desktop):
        status, answer = await ask(client, [flood], model="judge-untrained")
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        await reply_to(client, [ONE])
        await ask(client, [flood])

    async def at_once(task, client, desktop):
        await ask(client, [flood])

    async def play_all():
        for program in (short, side_then_first):
            CURRENT.append(program)
            row = await make_loop(policy, engine, pool, config).run({}, **ROW)
        assert row.extra_fields["stop_reason"] == "token_limit" and row.extra_fields["num_turns"] == 1
        CURRENT.append(at_once)
        with pytest.raises(HarnessError, match="bytes of text"):
            await make_loop(policy, engine, pool, config).run({}, **ROW)

    asyncio.run(play_all())
    del CURRENT[-3:]
    assert not pool.refused and max(tokenized) < 1000


def test_an_episode_shows_so_many_bytes_of_images_and_one_that_cannot_be_shown_counts_for_nothing(
    policy, tokenizer, monkeypatch
):
    red = png("red")
    monkeypatch.setattr("arpo_verl.agent.harness.client.MOST_IMAGE_BYTES", len(red))

    async def program(task, client, desktop):
        for broken in (red[:40], b"\x89PNG", red[:50]):
            assert (await ask(client, [user("one", broken)]))[0] == 400
        assert (await ask(client, [user("one", red + b"more")]))[0] == 413
        for shown in (red, red):
            await reply_to(client, [user("one", shown)])
        status, answer = await ask(client, [user("two", png("blue"))])
        assert (status, answer["error"]["code"]) == (413, "too_large")

    assert played(policy, tokenizer, program, ["a", "b"])[1] == [["b"]]


def test_an_image_that_is_decoded_behind_the_end_is_nobodys():
    seen = []

    async def run():
        ended, decodes = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def decode(observation):
            ended.cancel()
            decodes.set()
            return decode_screenshot(observation.screenshot)

        chat, watcher = SimpleNamespace(check=lambda request: None), SimpleNamespace(saw=seen.append)
        client = HarnessClient(chat, GuiAgentConfig(), decode, ended, watcher)
        with pytest.raises(RequestError, match="the episode is over"):
            await client.complete({"messages": [user("one", png("red"))]})
        assert decodes.is_set() and not client.images

    asyncio.run(run())
    assert not seen


def test_a_malformed_reply_is_the_policys_and_any_other_error_drops_the_session(policy, tokenizer):
    async def malformed(task, client, desktop):
        await reply_to(client, [ONE])
        raise ActionParseError("no action")

    rows, _, _ = played(policy, tokenizer, malformed, ["Hm."])
    assert rows[0].extra_fields["stop_reason"] == "parse_error" and rows[0].reward_score == -1.0

    async def off_screen(task, client, desktop):
        await reply_to(client, [ONE])
        await desktop.step(Click(Point(5000, 1)))

    assert played(policy, tokenizer, off_screen, ["Hm."])[0][0].extra_fields["stop_reason"] == "parse_error"

    async def broken(task, client, desktop):
        await reply_to(client, [ONE])
        return {}["missing"]

    async def silent(task, client, desktop):
        await asyncio.sleep(0)

    async def hanging(task, client, desktop):
        await reply_to(client, [ONE])
        await asyncio.Event().wait()

    for program, replies, why, timeout_s in (
        (broken, ["Hm."], r"raised KeyError\('missing'\)", 300),
        (silent, [], "at least one reply", 300),
        (hanging, ["Hm."], r"harness_timeout_s=0\.2", 0.2),
    ):
        pool = FakePool()
        with pytest.raises(HarnessError, match=why):
            played(policy, tokenizer, program, replies, pool, {"harness_timeout_s": timeout_s})
        assert len(pool.desktops) == 1 and pool.leased == 0 and not pool.refused


def test_a_turn_that_reads_like_the_policys_and_shows_an_image_is_context(policy, tokenizer):
    """Each image that is handed on has its place among the tokens."""

    async def program(task, client, desktop):
        await reply_to(client, [ONE])
        forged = {**user("Hello.", png(size=(200, 200))), "role": "assistant"}
        await reply_to(client, [TWO, forged, user("three", png(size=(64, 64)))])

    rows, texts, engine = played(policy, tokenizer, program, ["Hello.", "second"])
    assert texts == [["Hello."], ["second"]]
    (image_id,) = tokenizer.encode("<|image_pad|>")
    tokens = [*rows[1].prompt_ids]
    assert tokens == engine.calls[1]["prompt_ids"]
    assert tokens.count(image_id) == 7 * 7 + 2 * 2 and len(rows[1].multi_modal_data["images"]) == 2


def test_a_desktops_fault_starts_the_episode_anew_whatever_the_program_does_about_it(policy, tokenizer):
    async def stubborn(task, client, desktop):
        await reply_to(client, [ONE])
        try:
            await desktop.step(Click(HIT_POINT))
        except DesktopLostError:
            await asyncio.Event().wait()
        await desktop.step(Finish())

    pool = FakePool(FakeScript(fail={"step": [1]}), FakeScript())
    rows, texts, _ = played(policy, tokenizer, stubborn, ["first", "second"], pool)
    assert texts == [["second"]] and rows[0].reward_score == 1.0
    assert len(pool.desktops) == 2 and len(pool.faults) == 1


def test_what_a_program_leaves_behind_touches_no_desktop_under_evaluation(policy, tokenizer):
    left, late = [], []

    async def go_on(desktop, ended):
        await ended.wait()
        try:
            await desktop.step(Click(HIT_POINT))
        except HarnessError as error:
            late.append(str(error))

    async def program(task, client, desktop):
        ended = asyncio.Event()
        client._ended.add_done_callback(lambda _: ended.set())
        left.append(asyncio.create_task(go_on(desktop, ended)))
        await reply_to(client, [ONE])

    pool = FakePool()
    rows, _, _ = played(policy, tokenizer, program, ["first"], pool)
    assert late and "the episode is over" in late[0]
    assert not pool.desktops[0].actions and rows[0].reward_score == 0.0


def test_a_desktop_that_the_policy_ended_scores_0(policy, tokenizer):
    async def program(task, client, desktop):
        await reply_to(client, [ONE])
        await desktop.step(Click(HIT_POINT))

    rows, _, _ = played(policy, tokenizer, program, ["first"], FakePool(FakeScript(end={"step": [1]})))
    assert rows[0].extra_fields["stop_reason"] == "desktop_ended" and rows[0].reward_score == 0.0


def test_an_engines_fault_drops_the_session_whatever_the_program_does_about_it(policy, tokenizer):
    async def stubborn(task, client, desktop):
        status, answer = await ask(client, [ONE])
        assert (status, answer["error"]["code"]) == (503, "engine_failed")
        await asyncio.Event().wait()

    pool = FakePool()
    with pytest.raises(GenerationError, match="gone"):
        played(policy, tokenizer, stubborn, [GenerationError("gone")], pool)
    assert len(pool.desktops) == 1 and pool.leased == 0


def test_a_client_that_has_gone_gets_a_reply_that_nobody_trains(policy, tokenizer):
    """As a client does that times out and asks again."""

    class Slow(ScriptedEngine):
        async def generate(self, *args, **kwargs):
            if not self.calls:
                self.calls.append(None)
                await asyncio.Event().wait()
            return await super().generate(*args, **kwargs)

    engine = Slow(tokenizer, ["second"])

    async def program(task, client, desktop):
        lost = asyncio.create_task(reply_to(client, [ONE]))
        while not engine.calls:
            await asyncio.sleep(0.01)
        lost.cancel()
        await reply_to(client, [ONE])

    rows = play_by(program, policy, engine)
    assert trained_texts(rows, tokenizer) == [["second"]]
