"""Whatever a program sends is a request, or refused as none; whatever a server answers is a reply, or an error."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo_verl.agent.harness.chat_completions import image_bytes, read_request
from arpo_verl.errors import ConfigError, EndpointError, RequestError
from arpo_verl.tools.evaluation.answers import read_answer

NAMES = "role content type text image_url url tool_calls function name arguments tool_call_id id refusal usage".split()
WORDS = st.sampled_from(["user", "assistant", "tool", "text", "image_url", "data:image/png;base64,AAAA", "\ud800"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
TOP = ["messages", "tools", "stop", "n", "max_tokens", "model", "stream", "temperature", "tool_choice"]
MESSAGE = st.fixed_dictionaries({"role": WORDS, "content": JSON}, optional={"tool_calls": JSON, "tool_call_id": JSON})


@given(st.dictionaries(st.sampled_from(TOP), JSON), st.lists(MESSAGE, max_size=3))
def test_a_request_is_read_or_refused(asked, messages):
    for body in (asked, {**asked, "messages": messages}):
        with contextlib.suppress(RequestError):
            request = read_request(json.dumps(body).encode())
            assert len(request.prefixes()) == len(request.messages)
            json.dumps(request.record())
            for url in [url for message in request.messages for url in message.images]:
                with contextlib.suppress(RequestError):
                    image_bytes(url)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_request_are_refused(body):
    with contextlib.suppress(RequestError):
        read_request(body)


def test_a_reply_is_the_same_turn_however_a_client_writes_it():
    call = {"id": "a", "type": "function", "function": {"name": "click", "arguments": '{"x": 1, "y": 2}'}}
    other = {"id": "b", "type": "function", "function": {"name": "click", "arguments": '{"y":2,"x":1}'}}
    behind = {"role": "user", "content": "on"}

    def prefixes(message):
        return read_request({"messages": [{"role": "user", "content": "go"}, message, behind]}).prefixes()

    first = prefixes({"role": "assistant", "content": " I do. \n", "tool_calls": [call]})
    assert first == prefixes(
        {"role": "assistant", "content": [{"type": "text", "text": "I do."}], "tool_calls": [other]}
    )
    assert first != prefixes({"role": "assistant", "content": "I do.", "tool_calls": []})
    assert first[0] == prefixes({"role": "assistant", "content": ""})[0]


X = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "click"}}


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([], "Expected `object`, got `array`"),
        ({"messages": []}, r"length >= 1 - at `\$.messages`"),
        ({"messages": [X] * 1025}, r"length <= 1024 - at `\$.messages`"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"'robot' - at `\$.messages\[0\].role`"),
        ({"messages": [X, {"role": "assistant", "content": "x"}]}, "user or tool last"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'input_audio' - at"),
        ({"messages": [{**X, "deep": json.loads("[" * 200 + "]" * 200)}]}, "nested too deeply"),
        ({"messages": [{**X, "many": [0] * (1 << 18)}]}, "at most 262144 values"),
        ({"messages": [X], "n": 2}, r"value 2 - at `\$.n`"),
        ({"messages": [X], "response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"messages": [X], "tools": [{}]}, r"required field `function` - at `\$.tools\[0\]`"),
        ({"messages": [X], "tools": [{**TOOL, "x": json.loads("[" * 70 + "]" * 70)}]}, "at most 64 levels"),
        ({"messages": [X], "tools": [{**TOOL, "x": float("nan")}]}, "in UTF-8: Out of range float"),
        ({"messages": [X], "stop": ["\ud800"]}, "in UTF-8: 'utf-8' codec can't encode"),
        ({"messages": [X], "stop": ["x" * 1001]}, "length <= 1000"),
        ({"messages": [X], "stop": ["x"] * 17}, "length <= 16"),
    ],
)
def test_a_request_that_we_do_not_answer_is_refused_with_the_place_of_what_is_wrong(asked, what):
    with pytest.raises(RequestError, match=what) as error:
        read_request(json.dumps(asked).encode())
    assert len(str(error.value)) < 500


@given(MESSAGE | JSON, JSON, st.booleans(), st.sampled_from(["stop", "length", "abort", "content_filter", None]))
def test_an_answer_is_read_or_is_an_error(message, usage, with_tools, reason):
    answer = {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}
    for one in (answer, message, {"choices": message}):
        with contextlib.suppress(ConfigError, EndpointError):
            read = read_answer({"x": 1} if not isinstance(one, dict) else one, 64, ascii, with_tools)
            json.dumps([read.text, *(call.function.arguments for call in read.calls)], ensure_ascii=False).encode()
