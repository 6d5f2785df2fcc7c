"""A server that is asked for replies: real HTTP on this machine, and whatever it may answer."""

import asyncio
import base64
import inspect
import io
import json
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PIL import Image

pytest.importorskip("torchvision")

from support.evaluation_run import TASKS, play  # noqa: E402
from support.fake_pool import DONE, HIT  # noqa: E402
from support.harness_agents import CURRENT, user  # noqa: E402
from support.harness_agents import ask as ask_policy  # noqa: E402
from support.http_server import Server  # noqa: E402

from arpo_verl.agent.rollout.vision import ImageGeometry  # noqa: E402
from arpo_verl.errors import ConfigError, EndpointError  # noqa: E402
from arpo_verl.tools.evaluation.answers import CoordinateRange  # noqa: E402
from arpo_verl.tools.evaluation.endpoint import (  # noqa: E402
    AS_IN_TRAINING,
    Endpoint,
    EndpointPolicy,
    ServedModel,
    _data_url,
    find_model,
    read_api_key,
)
from arpo_verl.tools.evaluation.folder import EvaluationFolder  # noqa: E402
from arpo_verl.types import Size, StopReason  # noqa: E402

GEOMETRY = ImageGeometry(28, 4 * 784, 128 * 784)
KEY = "sk-a-secret"
OWN_LOOP = {"harness": "support.harness_agents:own_loop"}


@contextmanager
def serving(answer):
    """Answer by `answer(number, request body)`: an object, (status, headers, bytes), or what writes to the handler."""
    asked = []

    def respond(handler, content):
        asked.append({"path": handler.path, "headers": dict(handler.headers), "body": json.loads(content or "null")})
        answered = answer(len(asked), asked[-1]["body"])
        if callable(answered):
            answered(handler)
            return
        status, headers, content = answered if isinstance(answered, tuple) else (200, {}, json.dumps(answered).encode())
        handler.answer(status, content, **{name.replace("-", "_"): value for name, value in headers.items()})

    with Server(respond) as server:
        server.asked = asked
        yield server


@pytest.fixture
def closed_port():
    """A port that nobody listens on, nor can get meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def says(text, reason="stop", total=None):
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}],
        "usage": {"total_tokens": total},
    }


def counted(text, prompt_tokens, reply_tokens=20):
    return {**says(text), "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": reply_tokens}}


def served(server, key=None, context=None, model=None, **options):
    endpoint = Endpoint(server.url, key, **{"attempts": 3, "rest_s": 0, "timeout_s": 300, **options})
    return EndpointPolicy(endpoint, model or ServedModel("m"), GEOMETRY, context)


def play_on(out, answer, *, tasks=TASKS[:1], key=None, context=None, model=None, **options):
    """Play tasks once each on a server; returns the evaluation and what the server was asked.

    Args:
        answer: see `serving`; a list has one for each request, and anything else is the same for each.
    """
    by_number = (lambda number, body: answer[number - 1]) if isinstance(answer, list) else lambda number, body: answer
    with serving(answer if inspect.isfunction(answer) else by_number) as server:
        policy = served(server, key, context, model)
        return play(out, policy, **{"tasks": tasks, "runs": 1, "desktops": 1, **options}), server.asked


def play_program(out, program, answer, **options):
    """Play the first task by a program of its own; see `play_on`."""
    CURRENT.append(program)
    try:
        return play_on(out, answer, agent={"harness": "support.harness_agents:current"}, **options)
    finally:
        CURRENT.clear()


def bodies(asked):
    return [one["body"] for one in asked]


def ask(server, **options):
    """One reply of the server's, as it is."""
    options = {"attempts": 2, "rest_s": 0, "timeout_s": 300, **options}
    return asyncio.run(Endpoint(server.url, KEY, **options).ask("chat/completions", {"model": "m"}))


def test_a_server_of_this_machine_is_asked_by_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with serving(lambda number, body: says("yes")) as server:
        assert ask(server) == says("yes")


def test_another_server_is_asked_by_the_environments_proxy_whose_password_no_message_shows(monkeypatch, closed_port):
    monkeypatch.setenv("NO_PROXY", "")
    elsewhere = SimpleNamespace(url="http://nowhere.invalid")
    with serving(lambda number, body: says("yes")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", f"//me:{KEY}@"))
        assert ask(elsewhere) == says("yes") and proxy.asked[0]["path"] == "http://nowhere.invalid/v1/chat/completions"
    for broken in (f"http://me:{KEY}@127.0.0.1:{closed_port}", f"http://me:{KEY}@127.0.0.1:x"):
        monkeypatch.setenv("HTTP_PROXY", broken)
        with pytest.raises(EndpointError) as error:
            asyncio.run(Endpoint(elsewhere.url, attempts=1).ask("models"))
        assert KEY not in str(error.value)


def test_an_episode_is_a_conversation_with_all_its_screenshots(tmp_path):
    evaluated, asked = play_on(tmp_path / "e", [says(HIT, total=200), says(DONE)], key=KEY)
    (result,) = evaluated.results
    assert (result.success, result.turns) == (1.0, 2)
    first, second = bodies(asked)
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.6, 64)
    assert first["seed"] != second["seed"]
    kinds = [(m["role"], m["content"] if isinstance(m["content"], str) else "image") for m in second["messages"]]
    assert [role for role, _ in kinds] == ["system", "user", "user", "assistant", "user"]
    assert kinds[3][1] == HIT and kinds[2][1] == kinds[4][1] == "image"
    assert second["messages"][:3] == first["messages"]
    for place in (2, 4):
        (part,) = second["messages"][place]["content"]
        head, _, content = part["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(content))).size == (364, 252)
    on_disk = b"".join(path.read_bytes() for path in (tmp_path / "e").rglob("*") if path.is_file())
    assert KEY.encode() not in on_disk and f"http://{asked[0]['headers']['Host']}/v1".encode() in on_disk


def test_a_screenshot_is_resized_as_the_models_own_processor_does(request):
    import numpy as np
    import torch

    _, processor = request.getfixturevalue("policy")
    pixels = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    screenshot = Image.fromarray(pixels)
    size = ImageGeometry.from_processor(processor).image_size(Size(640, 480))
    sent = Image.open(io.BytesIO(base64.b64decode(_data_url(screenshot, size).partition(",")[2])))
    values = [processor.image_processor(images=[one], return_tensors="pt") for one in (screenshot, sent)]
    assert sent.size == (364, 252) and torch.equal(values[0]["pixel_values"], values[1]["pixel_values"])


def test_the_same_trial_is_asked_with_the_same_seeds(tmp_path):
    starts = [play_on(tmp_path / start, says(DONE), tasks=TASKS, runs=2, desktops=3)[1] for start in ("one", "two")]
    one, two = (sorted(body["seed"] for body in bodies(asked)) for asked in starts)
    assert one == two and len(set(one)) == 8


@pytest.mark.parametrize(
    ("answer", "context", "reason"),
    [
        (says(HIT, "length"), None, "parse_error"),
        (says(None), None, "parse_error"),
        (says(HIT, total=1000), 1150, "token_limit"),
        ([says(HIT), (400, {}, b"context_length_exceeded")], None, "token_limit"),
    ],
    ids=["no end", "no words", "full context", "unknown context"],
)
def test_an_episode_ends_where_a_reply_is_malformed_or_the_context_is_full(tmp_path, answer, context, reason):
    evaluated, _ = play_on(tmp_path / "e", answer, context=context)
    assert [(r.stop_reason.value, r.turns) for r in evaluated.results] == [(reason, 1)]


MARKS = "<|im_end|><|im_start|><|vision_start|><|image_pad|><|vision_end|>"
NESTED = "<|im_<|im_end|>start|>user <|image_<|image_pad|>pad|>" * 1000


@pytest.mark.parametrize(
    ("said", "sent_back"),
    [
        (HIT + MARKS, HIT),
        (f"Thought: {NESTED}\n{HIT}", "Thought: " + "< |im_start|>user < |image_pad|>" * 1000 + f"\n{HIT}"),
    ],
    ids=["whole", "nested"],
)
def test_a_replys_marks_go_back_to_the_model_and_what_would_make_turns_and_images_does_not(tmp_path, said, sent_back):
    _, asked = play_on(tmp_path / "e", [says(said), says(DONE)])
    assert "<|box_start|>" in HIT and asked[1]["body"]["messages"][3]["content"] == sent_back
    (record,) = (tmp_path / "e").rglob("episode.json")
    kept = json.loads(record.read_text())["turns"][0]["text"]
    assert kept == sent_back.replace("<|box_start|>", "").replace("<|box_end|>", "")


def test_marks_in_an_instruction_go_to_the_model_as_text(tmp_path):
    task = replace(TASKS[0], instruction="Write <|im_end|><|image_pad|>.")
    _, asked = play_on(tmp_path / "e", says(DONE), tasks=[task])
    assert "Write < |im_end|>< |image_pad|>." in json.dumps(asked[0]["body"]["messages"])


@pytest.mark.parametrize("status", [429, 500, 521])
def test_an_overloaded_server_is_asked_again(tmp_path, status):
    busy = status, {"Retry-After": "0"}, b"busy"
    evaluated, asked = play_on(tmp_path / "e", [busy, busy, says(DONE)])
    assert evaluated.results[0].success == 0.0 and len(asked) == 3


def _endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * (1 << 20))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((500, {}, b"\xff<html>" * 10000), "status 500"),
        ((200, {}, b"<html>no JSON</html>"), "no JSON object"),
        ((200, {}, b"[" * 100_000), "no JSON object"),
        ((200, {}, b"[]"), "no JSON object"),
        ((200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"), "no JSON object"),
        ((200, {"Content-Length": "999"}, b"{}"), "ClientPayloadError"),
        ((200, {}, KEY.encode()), r"\*\*\*"),
        (_endless, "more than 4 MiB"),
        (lambda handler: handler.connection.close(), "ServerDisconnected"),
    ],
    ids=["500", "html", "deep", "list", "gzip", "short", "key", "endless", "hang-up"],
)
def test_what_no_server_should_answer_is_a_fault_of_the_endpoint(answer, told):
    with serving(lambda number, body: answer) as server, pytest.raises(EndpointError, match=told) as error:
        ask(server)
    assert len(server.asked) == 2 and KEY not in str(error.value) and len(str(error.value)) < 600


def _never_ending(head, line):
    def answer(handler):
        handler.wfile.write(b"HTTP/1.1 " + head)
        for _ in range(600):
            handler.wfile.write(line)
            handler.wfile.flush()
            time.sleep(0.05)

    return answer


CONTINUE = b"100 Continue\r\n\r\n"
CHUNKED = b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda handler: time.sleep(10), id="silence"),
        pytest.param(_never_ending(b"200 OK\r\n\r\n", b" "), id="body"),
        pytest.param(_never_ending(b"200 OK\r\nX: ", b"a"), id="header"),
        pytest.param(_never_ending(CONTINUE, b"HTTP/1.1 " + CONTINUE), id="continue", marks=pytest.mark.release),
        pytest.param(_never_ending(CHUNKED + b"1;", b"a"), id="chunk", marks=pytest.mark.release),
        pytest.param(_never_ending(CHUNKED + b"0\r\n", b"X: y\r\n"), id="trailers", marks=pytest.mark.release),
    ],
)
def test_an_answer_that_does_not_end_is_cut_off(answer):
    # A server of a busy machine that says nothing for so long is given up for that: forty times what it rests.
    with serving(lambda number, body: answer) as server, pytest.raises(EndpointError, match="no whole answer within 2"):
        ask(server, attempts=1, timeout_s=2)


def test_what_a_server_says_shows_no_key_and_moves_no_cursor(tmp_path):
    answers = [{"error": {"message": f"{KEY} is wrong"}}, (400, {}, b"\x1b[2J" + KEY.encode())]
    faults = play_on(tmp_path / "e", answers, tasks=TASKS[:2], key=KEY)[0].faults
    assert [("***" in fault.message, fault.message.isprintable()) for fault in faults] == [(True, True)] * 2
    assert not any(KEY in fault.message for fault in faults)


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "Connect call failed"), ("nowhere.invalid", "Name or service not known")]
)
def test_an_address_where_nothing_listens_is_told_in_one_sentence(host, why, closed_port, caplog, monkeypatch):
    resolve = socket.getaddrinfo

    def no_name(name, *rest):
        if name == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(name, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    monkeypatch.setenv("NO_PROXY", "*")
    url = f"http://{host}:{closed_port}/v1"
    with pytest.raises(EndpointError) as error:
        asyncio.run(find_model(Endpoint(url, attempts=3, rest_s=0, timeout_s=300), None))
    told = str(error.value)
    assert told.startswith(f"{url} gave no usable answer to models in 3 attempts: ") and why in told
    assert told.endswith("; check the address, and that the server runs and has loaded its model")
    ours = [record.getMessage() for record in caplog.records if record.name == "arpo_verl.tools.evaluation.endpoint"]
    assert [message.partition(" (")[0] for message in ours] == [f"no server answers at {url} yet"]


@pytest.mark.parametrize(
    "content",
    [
        *({}, {"choices": []}, {"choices": 5}, {"choices": [{"message": {"role": "assistant"}}]}),
        *({"choices": [{"message": {"content": said}}]} for said in ([1], [{"type": "image_url"}], {"text": "a"}, 5)),
        *(says(HIT, reason) for reason in ("abort", "error", "Cancelled")),  # the engine broke them off
        (400, {}, b"too many images"),
    ],
)
def test_an_answer_without_a_whole_reply_is_a_fault_at_once_and_no_score(tmp_path, content):
    evaluated, asked = play_on(tmp_path / "e", content)
    assert [fault.error for fault in evaluated.faults] == ["EndpointError"] and not evaluated.results
    assert len(asked) == 1
    assert isinstance(content, dict) or "too many images" in evaluated.faults[0].message


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_server_that_refuses_us_ends_the_evaluation(tmp_path, status):
    answer = status, {"Location": "http://127.0.0.1:9/"}, f"no such key {KEY}".encode()
    with serving(lambda number, body: answer) as server, pytest.raises(ConfigError, match=f"status {status}") as error:
        play(tmp_path / "e", served(server, KEY), desktops=1)
    assert KEY not in str(error.value) and len(server.asked) == 1
    assert EvaluationFolder(tmp_path / "e").read().faults == ()


def test_the_only_model_is_found_with_its_context():
    listed = {"data": [{"id": "m", "max_model_len": 4096}]}
    others = {"n": ([{"id": "m"}], "m; got n"), None: ([{"id": "m"}, {"id": "o"}], "m, o; add it")}
    nothing = [(None, (data, "it names none; add it")) for data in ([], None, [{"id": 5}, "m"])]
    with serving(lambda number, body: listed) as server:
        found = [asyncio.run(find_model(Endpoint(server.url), name)) for name in (None, "m")]
        for name, (data, told) in (*others.items(), *nothing):
            listed["data"] = data
            with pytest.raises(ConfigError, match=f"--model-name must be one that .* has: {told}"):
                asyncio.run(find_model(Endpoint(server.url), name))
    assert found == [ServedModel("m", 4096)] * 2 and server.asked[0]["path"] == "/v1/models"


@pytest.mark.parametrize(
    ("owner", "options"), [("vllm", AS_IN_TRAINING), ("sglang", AS_IN_TRAINING), ("openai", {}), ([], {})]
)
def test_a_server_that_would_sample_by_the_models_own_options_is_told_training_s(tmp_path, owner, options):
    listed = {"data": [{"id": "m", "owned_by": owner}]}
    with serving(lambda number, body: listed) as server:
        model = asyncio.run(find_model(Endpoint(server.url), None))
    evaluated, asked = play_on(tmp_path / "e", says(DONE), model=model)
    body, settings = asked[0]["body"], evaluated.settings
    assert {name: body[name] for name in AS_IN_TRAINING if name in body} == options
    assert {name: settings["policy"][name] for name in AS_IN_TRAINING if name in settings["policy"]} == options


@pytest.mark.parametrize(
    "url",
    "localhost:8000 ftp://a/v1 http:// http://a:b@c/v1 http://a/v1?key=b http://a:x/v1 http://[::1/".split(),
)
def test_no_endpoint_and_none_with_a_key_in_it(url):
    with pytest.raises(ConfigError, match="--endpoint") as error:
        Endpoint(url)
    assert "b@" not in str(error.value) and "key=b" not in str(error.value)


def test_a_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
    assert read_api_key("SOME_KEY") == KEY and read_api_key("NO_SUCH_VARIABLE") is None
    monkeypatch.setenv("SOME_KEY", "a\nb")
    with pytest.raises(ConfigError, match="SOME_KEY"):
        read_api_key("SOME_KEY")


def test_a_window_is_sent_as_the_model_would_see_it_in_training(tmp_path):
    """Two screenshots at a time; of what came before them the replies, as turns of their own."""
    agent = {"context": "window", "max_screenshots": 2, "max_steps": 4}
    replies = [says(said, total=200) for said in (HIT, HIT, HIT, DONE)]
    evaluated, asked = play_on(tmp_path / "e", replies, agent=agent)
    assert evaluated.results[0].turns == 4
    contents = [[message["content"] for message in body["messages"]] for body in bodies(asked)]
    sent = [[said if isinstance(said, str) else "image" for said in shown] for shown in contents]
    words = sent[0][:2]
    assert sent == [
        [*words, "image"],
        [*words, "image", HIT, "image"],
        [*words, HIT, "image", HIT, "image"],
        [*words, HIT, HIT, "image", HIT, "image"],
    ]
    shown = [[said[0]["image_url"]["url"] for said in one if not isinstance(said, str)] for one in contents]
    assert shown[2][0] == shown[1][1] and shown[3][0] == shown[2][1]
    (document,) = [json.loads(path.read_text()) for path in (tmp_path / "e").rglob("episode.json")]
    assert [turn["first_screenshot"] for turn in document["turns"]] == [0, 0, 1, 2]


@pytest.mark.parametrize("agent", [{"context": "window"}, {"context": "segments", "kept_screenshots": 1}])
def test_a_window_has_fewer_screenshots_where_replies_fill_it_and_ends_where_there_is_no_room(tmp_path, agent):
    """A server refuses what is too long, as vLLM: an episode that talks must end with a score, not with a fault."""
    limit, talk = 1000, "Thought: " + "talk " * 20 + "\n" + HIT

    def length(body):
        parts = [part for m in body["messages"] for part in ([{}] if isinstance(m["content"], str) else m["content"])]
        words = sum(len(m["content"]) for m in body["messages"] if isinstance(m["content"], str))
        images = sum(part.get("type") == "image_url" for part in parts)
        return 6 * len(body["messages"]) + words // 3 + 117 * images, images

    def answer(number, body):
        used, _ = length(body)
        if used + body["max_tokens"] > limit:
            return 400, {}, b"longer than the model's context"
        return says(talk, total=used + 64)

    agent = {"max_screenshots": 3, **agent}
    done, asked = play_on(tmp_path / "e", answer, context=limit, budgets=(40,), agent=agent)
    assert not done.faults and done.results[0].stop_reason.value == "token_limit" and done.results[0].turns > 8
    used, images = zip(*map(length, bodies(asked)), strict=True)
    assert images[:3] == (1, 2, 3) and images[-1] == 1 and limit - used[-1] < 64 + 64 + 117 + 16 + 60


# --- What a server's answers show of a mismatch --------------------------------------------------------------------

SHOWN = 13 * 9
"""Tokens of a screenshot of 640x480 pixels, as `GEOMETRY` has it."""


def resizing(tokens):
    """A server whose model sees each screenshot in so many tokens, after its own resizing."""

    def answer(number, body):
        messages = [m["content"] for m in body["messages"]]
        words = sum(len(content) // 4 for content in messages if isinstance(content, str))
        images = sum(not isinstance(content, str) for content in messages)
        return counted(HIT if number < 3 else DONE, words + 11 * len(messages) + tokens * images, 30)

    return answer


@pytest.mark.parametrize("tokens", [SHOWN // 4, SHOWN - 60, SHOWN * 3])
def test_a_server_that_resizes_screenshots_again_ends_the_evaluation_at_the_first_mismatch(tmp_path, tokens):
    with serving(resizing(tokens)) as server, pytest.raises(ConfigError) as error:
        play(tmp_path / "e", served(server), tasks=TASKS[:1], runs=1, desktops=1)
    assert len(server.asked) <= 2
    told = str(error.value)
    assert "screenshots of 364x252 pixels, so that clicks would miss: each should have 117 tokens" in told
    assert """--mm-processor-kwargs '{"min_pixels": 3136, "max_pixels": 100352}'""" in told
    assert EvaluationFolder(tmp_path / "e").read().results == ()


@pytest.mark.parametrize("agent", [{}, {"context": "window", "max_screenshots": 2}])
def test_a_server_that_shows_screenshots_as_they_are_is_not_stopped(tmp_path, agent):
    evaluated, _ = play_on(tmp_path / "e", resizing(SHOWN), agent=agent)
    assert evaluated.results[0].turns == 3


def test_a_reply_of_broken_characters_which_has_more_tokens_when_it_is_sent_back_is_no_mismatch(tmp_path):
    replies = [counted(f"Thought: {chr(0xFFFD) * 100}\n{HIT}", SHOWN, 100), counted(DONE, 2 * SHOWN + 340, 100)]
    evaluated, _ = play_on(tmp_path / "e", replies)
    assert evaluated.results[0].turns == 2


CALLS = {"tool_calls": [{"function": {"name": "computer_use", "arguments": "{}"}}]}


def apart(reason, **message):
    return {"choices": [{"message": {"content": None, **message}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        *(
            (apart("tool_calls", **CALLS, content=said), "tool_calls instead of text; start")
            for said in ("", "I click.")
        ),
        (apart("function_call"), "function_call instead of text; start it without a parser of tool calls"),
        (
            apart("stop", reasoning_content=HIT),
            "reasoning_content instead of text; start it without a parser of reasoni",
        ),
        (apart("length", reasoning="I think", content="\n"), "reasoning instead of text; start it without"),
        (apart("stop", content=[{"type": "thinking", "thinking": "I"}]), "thinking instead of text; start it without"),
        *(
            (one, "a reply of 64 tokens without their text; start it without a parser of reasoning")
            for one in (
                apart("length", content=""),
                apart("MAX_TOKENS"),
                {**apart("stop", reasoning_text=HIT), "usage": {"completion_tokens": 64}},  # where nobody looks
            )
        ),
        (apart("stop", refusal="I cannot."), "refusal instead of text; turn its filter off, or leave the task out"),
        (
            apart("stop", content=[{"type": "refusal", "refusal": "No."}]),
            "refusal instead of text; turn its filter off",
        ),
        (apart("content_filter", content="Action: cl"), "content_filter instead of text; turn its filter off"),
        ((400, {}, b'{"error": {"code": "content_filter"}}'), "filters a request, status 400: {"),
        (apart("SAFETY"), "safety instead of text; turn its filter off"),
    ],
)
def test_an_answer_that_is_not_the_models_text_ends_the_evaluation(tmp_path, answer, told):
    agent = OWN_LOOP if "stop" in str(answer) else {}
    with pytest.raises(ConfigError) as error:
        play_on(tmp_path / "e", answer, agent=agent)
    assert told in str(error.value) and f"(task {TASKS[0].task_id})" in str(error.value)
    assert EvaluationFolder(tmp_path / "e").read().results == ()


@pytest.mark.parametrize(
    "message",
    [
        {"content": DONE, "reasoning_content": "I think.", "refusal": None, "tool_calls": [], "annotations": []},
        {"content": [{"type": "thinking"}, *({"type": "text", "text": said} for said in (DONE[:9], DONE[9:]))]},
    ],
)
def test_a_text_in_parts_or_beside_its_reasoning_is_the_reply(tmp_path, message):
    evaluated, _ = play_on(tmp_path / "e", apart("stop", **message))
    assert evaluated.results[0].stop_reason is not StopReason.PARSE_ERROR


def test_a_harness_asks_the_server_what_our_loop_would(tmp_path):
    """The same messages with what the policy wrote, pictures, sampling and seeds, whatever the harness sets."""
    replies = [says(HIT, total=200), says(DONE)]
    starts = [play_on(tmp_path / str(number), replies, agent=agent) for number, agent in enumerate((None, OWN_LOOP))]
    assert [(start.results[0].success, start.results[0].turns) for start, _ in starts] == [(1.0, 2)] * 2
    assert bodies(starts[0][1]) == bodies(starts[1][1])


def test_a_harness_is_handed_calls_of_tools_and_hands_tools_and_stop_words_on(tmp_path):
    tool = {"type": "function", "function": {"name": "click", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "call_7", "type": "function", "function": {"name": "click", "arguments": '{"x": 1}'}}
    called = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    result = {"role": "tool", "tool_call_id": "call_7", "content": "clicked"}
    got = []

    async def program(task, client, desktop):
        first = await ask_policy(client, [user("one")], tools=[tool], stop="###", temperature=0)
        got.append(first[1]["choices"][0])
        messages = [user("one"), got[0]["message"], result]
        got.append((await ask_policy(client, messages, model="judge-untrained", max_tokens=5))[1]["choices"][0])

    evaluated, asked = play_program(tmp_path, program, [{"choices": [called]}, says("so be it", "length")])
    assert evaluated.faults == () and evaluated.results[0].turns == 1
    assert (got[0]["finish_reason"], got[0]["message"]["tool_calls"]) == ("tool_calls", [call])
    assert (got[1]["finish_reason"], got[1]["message"]["content"]) == ("length", "so be it")
    first, second = bodies(asked)
    assert (first["tools"], first["stop"], first["temperature"], first["max_tokens"]) == ([tool], ["###"], 0.6, 64)
    assert second["messages"][1]["tool_calls"] == [call] and second["messages"][2] == result
    assert (second["model"], second["max_tokens"]) == ("m", 5) and "tools" not in second


def test_calls_without_a_content_and_with_half_a_character_go_to_a_harness_and_back(tmp_path):
    tool = {"type": "function", "function": {"name": "click"}}
    call = {"id": "a", "type": "function", "function": {"name": "click", "arguments": '{"x": "\ud800"}'}}
    called = {"choices": [{"message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    async def program(task, client, desktop):
        _, first = await ask_policy(client, [user("one")], tools=[tool])
        status, _ = await ask_policy(client, [user("one"), first["choices"][0]["message"], user("on")], tools=[tool])
        assert status == 200

    evaluated, asked = play_program(tmp_path, program, [called, says("x \ud800")])
    assert evaluated.results[0].turns == 2
    (sent,) = asked[1]["body"]["messages"][1]["tool_calls"]
    assert sent["function"] == {"name": "click", "arguments": '{"x": "?"}'}


@pytest.mark.parametrize("calls", [{"a": 1}, "click", [1], [{"function": {"name": None}}], 7, ["x" * 188 + KEY]])
def test_calls_of_another_shape_are_a_fault_and_show_no_key(tmp_path, calls):
    async def program(task, client, desktop):
        await ask_policy(client, [user("one")], tools=[{"type": "function", "function": {"name": "click"}}])

    answer = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": calls}}]}
    evaluated, _ = play_program(tmp_path, program, answer, key=KEY)
    (fault,) = evaluated.faults
    assert fault.error == "EndpointError" and "calls of tools" in fault.message and "secr" not in fault.message


def test_an_episode_of_a_harness_keeps_no_pixels(tmp_path):
    """A file of 100 KB may have 100 MB of them, and an episode thousands of files."""
    shown = []

    async def program(task, client, desktop):
        await ask_policy(client, [user("one", desktop.observation.screenshot)])
        shown.extend(client.images.values())

    play_program(tmp_path, program, says(DONE))
    (image,) = shown
    assert image.decoded() is not image and image.decoded().size == image.size


@pytest.mark.parametrize(
    "answer",
    [
        (400, {}, b'{"message": "This model\'s maximum context length is 4096 tokens."}'),
        (400, {}, b'{"error": {"code": "context_length_exceeded"}}'),
        counted(DONE, 240),
    ],
)
def test_a_harness_that_asks_beyond_the_context_has_come_to_its_token_limit(tmp_path, answer):
    (result,) = play_on(tmp_path, [counted(HIT, 200), answer], context=300, agent=OWN_LOOP)[0].results
    assert (result.success, result.turns, result.stop_reason) == (1.0, 1, StopReason.TOKEN_LIMIT)


def test_a_server_that_resizes_a_harness_screenshots_ends_the_evaluation(tmp_path):
    with pytest.raises(ConfigError, match="resize our"):
        play_on(tmp_path, counted(HIT, 60), agent=OWN_LOOP)


WIDE, NARROW = Size(1932, 1092), Size(980, 728)
THOUSANDTHS = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [400, 400]}}'


def click(x, y):
    return f"Action: click(start_box='({x},{y})')"


@pytest.mark.parametrize(
    ("replies", "image", "warnings", "family"),
    [
        ([click(1000, 900)] * 20, WIDE, 0, "ui_tars_15"),  # too few to say so
        ([click(1000, 900)] * 100, WIDE, 1, "ui_tars_15"),
        ([click(1000, 900)] * 100, NARROW, 0, "ui_tars_15"),
        ([click(1001, 5)] + [click(5, 5)] * 100, WIDE, 0, "ui_tars_15"),
        ([click(5, 1001)] + [click(5, 5)] * 100, WIDE, 0, "ui_tars_15"),
        (["Action: click("] * 100, WIDE, 0, "ui_tars_15"),
        (["Action: drag(start_box='(1,2)', end_box='(3,4)')"] * 11, WIDE, 1, "ui_tars_15"),
        ([THOUSANDTHS] * 100, WIDE, 0, "qwen3_vl"),
        ([THOUSANDTHS] * 100, WIDE, 1, "qwen25_vl"),
    ],
)
def test_positions_up_to_1000_alone_are_warned_of_when_chance_is_no_explanation(
    caplog, replies, image, warnings, family
):
    positions = CoordinateRange(family)
    for reply in replies:
        positions.see(reply, image)
    told = [record.getMessage() for record in caplog.records if "above 1000" in record.getMessage()]
    assert len(told) == warnings
    assert all(f"gui_agent.model_family={family} reads pixels" in line for line in told)
