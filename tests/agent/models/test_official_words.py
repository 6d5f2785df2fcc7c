"""The models' own words: what our prompts render to beside what OSWorld's agents send."""

import asyncio
import re
import subprocess
import sys

import pytest
from PIL import Image
from support import needs_words

from arpo_verl.agent.models import official_words, qwen, ui_tars_15
from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import TokenConversation, TokenLimits
from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.errors import MissingDependencyError
from arpo_verl.types import Size, Task

CALL_USER = (
    "call_user() # Submit the task and call the user when the task is unsolvable, or when you need the user's help.\n"
)
KINDS = ("ui_tars_15", "ui_tars_10", "ui_tars_2", "qwen25_vl", "qwen3_vl")


def render(messages, name_of=lambda part: "<image>"):
    """As text, in the manner of Qwen's chat template; a screenshot as it is named."""
    turns = []
    for message in in_parts(messages):
        parts = [part["text"] if part["type"] == "text" else name_of(part) for part in message["content"]]
        turns.append(f"<|im_start|>{message['role']}\n{''.join(parts)}<|im_end|>\n")
    return "".join(turns)


def in_parts(messages):
    """Some agents send a reply's text as it is, without a part around it."""
    for message in messages:
        content = message["content"]
        yield {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


def click(kind, number):
    """The reply to a screenshot; in Qwen's own form, and once each without the line that says what is done."""
    if not load_family(kind).lists_earlier:
        return f"Thought: The {number}th button.\nAction: click(start_box='({number},20)')"
    arguments = f'{{"action": "left_click", "coordinate": [{number}, 20]}}'
    line = "" if number == 1 else f"Action: Press the {number}th button.\n"
    return f'{line}<tool_call>\n{{"name": "computer_use", "arguments": {arguments}}}\n</tool_call>'


def told_to_the_engine(policy, kind, instruction, replies, **context):
    """What a policy's conversation gives to the engine before each reply, as text, and the screenshots beside it."""
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer, processor = policy
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    chat = ChatTokenizer.from_processor(tokenizer, processor, builder)
    told = []

    async def generate(prompt_ids, images, max_tokens):
        text = tokenizer.decode(prompt_ids, skip_special_tokens=False)
        names = iter(f"<image {image.getpixel((0, 0))[0]}>" for image in images)
        told.append(re.sub(r"<\|vision_start\|>(<\|image_pad\|>)+<\|vision_end\|>", lambda _: next(names), text))
        assert next(names, None) is None
        return Generated((*tokenizer.encode(replies[len(told) - 1], add_special_tokens=False), chat.end_id), None)

    config = GuiAgentConfig(max_steps=len(replies), model_family=kind, **context)
    conversation = TokenConversation(generate, chat, config, TokenLimits(10**5, 10**5))
    screen = Size(640, 480)
    conversation.open(Task("t", instruction, {}), screen)
    images = []
    for number in range(len(replies)):
        images.append(Image.new("RGB", screen, (number, 0, 0)))
        asyncio.run(conversation.reply(images))
        assert conversation.show(screen) is None
    return told, [step.count("<image ") for step in told]


@needs_words
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ({"context": "window"}, [1, 2, 3, 4, 5, 5, 5, 5]),
        ({"context": "window", "max_screenshots": 1}, [1] * 8),
        ({"context": "segments", "max_screenshots": 4, "kept_screenshots": 2}, [1, 2, 3, 4, 2, 3, 4, 2]),
    ],
    ids=["as-configured", "the-newest-alone", "segments"],
)
def test_what_the_engine_is_given_is_what_the_official_agent_sends(policy, kind, context, shown, tmp_path, monkeypatch):
    """Token by token what a row holds, beside the agent's messages with as many screenshots; a window is the agent as
    it is configured."""
    pytest.importorskip("verl")
    from support.official_agents import number_of, sent_messages

    monkeypatch.chdir(tmp_path)
    instruction = "Rename {it} to 'C:\\new', \"now\"."
    replies = [click(kind, number) for number in range(len(shown))]
    told, counts = told_to_the_engine(policy, kind, instruction, replies, **context)
    assert counts == shown
    default = context == {"context": "window"}
    sent = {count: sent_messages(kind, instruction, replies, None if default else count) for count in set(shown)}
    for step, (ours, count) in enumerate(zip(told, shown, strict=True)):
        theirs = render(sent[count][step], lambda part: f"<image {number_of(part)}>") + "<|im_start|>assistant\n"
        if kind == "ui_tars_15":
            # Theirs puts special tokens around older coordinates; a policy's reply is its own tokens.
            theirs, ours = (
                re.sub(r"<\|box_(start|end)\|>", "", text) for text in (theirs, ours.replace(CALL_USER, "", 1))
            )
        elif load_family(kind).lists_earlier:
            theirs = theirs.replace("Performing click action", "Performing left_click action")
        elif kind == "ui_tars_2":  # no system message, for which Qwen2.5-VL's template has one of its own
            ours = ours.removeprefix("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
        assert ours == theirs, f"step {step}"


@needs_words
def test_gui_owl_is_asked_as_its_agent_asks(policy, tmp_path, monkeypatch):
    pytest.importorskip("verl")
    from support.official_agents import number_of, sent_messages

    monkeypatch.chdir(tmp_path)
    call = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "click", "coordinate": [3, 4]}}\n</tool_call>'
    replies = [
        f"<thinking>One.</thinking>\n{call}\n<conclusion>Pressed it.</conclusion>",
        f"<thinking>Two.</thinking>\n{call}",
        call,
    ]
    told, counts = told_to_the_engine(policy, "gui_owl", "Press {it}.", replies)
    assert counts == [1, 1, 1]
    sent = sent_messages("gui_owl", "Press {it}.", replies)
    for ours, theirs in zip(told, sent, strict=True):
        theirs = render(theirs, lambda part: f"<image {number_of(part)}>") + "<|im_start|>assistant\n"
        assert ours == theirs
    assert "Step 1: Pressed it.\nStep 2: Two.\n" in told[2]


@needs_words
@pytest.mark.parametrize("kind", ["qwen25_vl", "qwen3_vl"])
@pytest.mark.parametrize(
    "said",
    [
        "Action: Wait for it.",
        "  action: wait",
        "Thought: hm.\nAction: one. Action: two\nAction: three",
        "Step 3: Open it.",
        "I will open it.\nAction: Open.",
        "Nothing of that kind.",
    ],
)
def test_what_a_reply_says_that_it_does_is_what_the_official_agent_lists(kind, said):
    from support.official_agents import qwen_agent

    reply = f"{said}\n{click(kind, 1)}"
    theirs = qwen_agent(kind).parse_response(reply, 640, 480, 640, 480)[0]
    user = load_family(kind).opening("x", "English", (reply,))[-1]["content"][-1]["text"]
    listed = theirs.replace("Performing click action", "Performing left_click action")
    assert user.endswith(f"Previous actions:\nStep 1: {listed}")


@needs_words
def test_ui_tars_is_told_of_single_backslashes_in_the_language_asked_for():
    system, user = ui_tars_15.words("Do it.", "German")
    assert system == "You are a helpful assistant."
    assert r"# Use escape characters \', \", and \n in content part" in user
    assert "- Use German in `Thought` part." in user and user.endswith("## User Instruction\nDo it.\n")


@needs_words
def test_qwen25_is_not_offered_what_its_tool_lacks():
    (system25, _), (system3, user) = (qwen.words(f"{kind}_agent.py", "Do it.") for kind in ("qwen25vl", "qwen3vl"))
    for name in ("triple_click", "hscroll", "answer"):
        assert name not in system25 and f"* `{name}`: " in system3
    assert "The screen's resolution is 1000x1000." in system3
    assert user.endswith("Instruction: Do it.\n\nPrevious actions:\nNone")


@needs_words
def test_no_module_of_the_package_is_imported():
    code = (
        "import sys; from arpo_verl.agent.models.family import load_family\n"
        "for kind in ('ui_tars_15', 'qwen25_vl', 'qwen3_vl'): load_family(kind).opening('x', 'English', ())\n"
        "assert not [name for name in sys.modules if name.startswith('mm_agents')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of that name with nothing in it."""
    (tmp_path / official_words.PACKAGE).mkdir()
    (tmp_path / official_words.PACKAGE / "__init__.py").touch()
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == official_words.PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (official_words.constants, official_words._assignments):
        cached.cache_clear()
    yield tmp_path / official_words.PACKAGE
    for cached in (official_words.constants, official_words._assignments):
        cached.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_package_the_error_says_what_to_install(kind, package):
    with pytest.raises(MissingDependencyError, match=r"_.*py is not installed; run arpo-verl .*, or pip inst"):
        load_family(kind).opening("x", "English", ())
    assert load_family("small").opening("x", "English", ())


@pytest.mark.parametrize(
    ("kind", "file", "source", "says"),
    [
        ("ui_tars_15", "uitars15_v1.py", "UITARS_NORMAL_ACTION_SPACE = ''", "has no UITARS_"),
        (
            "ui_tars_15",
            "uitars15_v1.py",
            "UITARS_NORMAL_ACTION_SPACE = ''\nUITARS_CALL_USR_ACTION_SPACE = ''\nUITARS_USR_PROMPT_THOUGHT = '{new}'",
            "is not as expected",
        ),
        ("qwen25_vl", "qwen25vl_agent.py", "tools_def = {}", "is not as expected.*system_prompt"),
        (
            "qwen3_vl",
            "qwen3vl_agent.py",
            "class A:\n    def predict(self):\n        system_prompt = self.words()",
            "is not as expected.*words",
        ),
    ],
)
def test_words_that_are_kept_otherwise_are_refused(kind, file, source, says, package):
    (package / file).write_text(source)
    with pytest.raises(MissingDependencyError, match=says):
        load_family(kind).opening("x", "English", ())
