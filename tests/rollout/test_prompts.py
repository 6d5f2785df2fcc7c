"""What the model is told."""

import json

import pytest

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.errors import ConfigError
from arpo_verl.rollout.prompts import PROMPT_GRAMMARS, build_messages, prompt_of, reply_message, screenshot_message
from arpo_verl.types import Size

# Arguments of the tool's actions that take no coordinate.
EXAMPLES = {
    "key": {"keys": ["ctrl", "c"]},
    "type": {"text": "a"},
    "scroll": {"pixels": -3},
    "hscroll": {"pixels": 3},
    "wait": {"time": 2},
    "terminate": {"status": "success"},
    "answer": {"text": "a"},
}


def text_of(messages):
    return "\n".join(part["text"] for message in messages for part in message["content"])


def test_the_ui_tars_prompt_holds_the_action_space_and_ends_with_the_task():
    text = text_of(build_messages("Open {the} file.", kind="ui_tars_15", language="German"))
    assert text.endswith("## User Instruction\nOpen {the} file.")
    assert "- Use German in `Thought` part." in text
    for name in "click left_double right_single drag hotkey type scroll wait finished call_user".split():
        assert f"\n{name}(" in text


def test_the_compact_prompt_is_short(tokenizer):
    messages = build_messages("Open the file.", kind="compact")
    assert len(tokenizer.encode(text_of(messages))) < 60
    assert [message["role"] for message in messages] == ["system", "user"]


@pytest.mark.parametrize(("kind", "resolution"), [("qwen25_vl", "1932x1092"), ("qwen3_vl", "1000x1000")])
def test_the_tool_prompt_names_what_the_grammar_reads_and_where_coordinates_end(kind, resolution):
    text = text_of(build_messages("Open {the} file.", kind=kind, language="German", image_size=Size(1932, 1092)))
    assert text.endswith("\nOpen {the} file.") and f"resolution is {resolution}." in text
    assert "one sentence in German" in text
    schema = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])["function"]
    assert schema["name"] == "computer_use"
    grammar, image = GRAMMARS[kind], Size(1932, 1092)
    for name in schema["parameters"]["properties"]["action"]["enum"]:
        arguments = {"action": name, **EXAMPLES.get(name, {"coordinate": [3, 4]})}
        assert set(arguments) <= set(schema["parameters"]["properties"])
        call = json.dumps({"name": "computer_use", "arguments": arguments})
        assert len(grammar.parse(f"<tool_call>{call}</tool_call>", image, Size(1920, 1080)).actions) == 1


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_every_grammar_has_a_prompt_that_asks_for_it(grammar):
    assert grammar in PROMPT_GRAMMARS[prompt_of(grammar)]


def test_a_prompt_for_an_unknown_grammar_is_refused_with_the_known():
    with pytest.raises(ConfigError, match=f"one of {', '.join(GRAMMARS)}, got 'huge'"):
        prompt_of("huge")


def test_an_unknown_prompt_is_refused():
    with pytest.raises(ConfigError, match="one of ui_tars_15, compact"):
        build_messages("x", kind="huge")


def test_messages_have_one_shape():
    assert screenshot_message() == {"role": "user", "content": [{"type": "image"}]}
    assert reply_message("a") == {"role": "assistant", "content": [{"type": "text", "text": "a"}]}
