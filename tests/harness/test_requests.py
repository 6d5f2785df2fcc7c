"""Whatever a program sends is a request, or refused as none."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from arpo_verl.errors import RequestError
from arpo_verl.harness.requests import image_bytes, read_request

NAMES = "role content type text image_url url tool_calls function name arguments tool_call_id".split()
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
