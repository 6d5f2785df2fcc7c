"""What the model is told."""

import json
import re

import pytest
from support import needs_words

from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.models.family import SHIPPED, load_family
from arpo_verl.agent.models.messages import screenshot_message
from arpo_verl.agent.rollout.blocking import PolicyConversation, play_blocking
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.desktops.fake import FakeEnvironment
from arpo_verl.errors import ActionParseError
from arpo_verl.tasks.expert import expert_replies
from arpo_verl.tasks.loader import shipped_ids
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, Size, Task, TypeText, Wait

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
OWN_EXAMPLES = {
    "gui_owl": {"drag": {"coordinate": [1, 2], "coordinate2": [3, 4]}, "type": {"text": "a", "clear": 1, "enter": 1}}
}


def test_the_prompt_of_the_small_policies_is_short(tokenizer):
    *told, screenshot = load_family("small").opening("Open the file.", "English", ())
    text = "\n".join(part["text"] for message in told for part in message["content"])
    assert len(tokenizer.encode(text)) < 60
    assert [message["role"] for message in told] == ["system", "user"] and screenshot == screenshot_message()


@needs_words
@pytest.mark.parametrize(("kind", "offered"), [("qwen25_vl", 11), ("qwen3_vl", 14), ("gui_owl", 11)])
def test_what_the_tool_offers_the_grammar_reads(kind, offered):
    """Qwen3-VL's description offers three actions more than its schema lists."""
    system = load_family(kind).opening("Open the file.", "English", ())[0]["content"][-1]["text"]
    parameters = json.loads(system.split("<tools>\n")[1].split("\n</tools>")[0])["function"]["parameters"]
    action = parameters["properties"]["action"]
    described = re.findall(r"^\* `(\w+)`:", action["description"], re.MULTILINE)
    assert len({*action["enum"], *described}) == offered
    for name in {*action["enum"], *described}:
        arguments = {"action": name, **(EXAMPLES | OWN_EXAMPLES.get(kind, {})).get(name, {"coordinate": [3, 4]})}
        assert set(arguments) <= set(parameters["properties"])
        call = json.dumps({"name": "computer_use", "arguments": arguments})
        reply = load_family(kind).parse(f"<tool_call>{call}</tool_call>", Size(1932, 1092), Size(1920, 1080))
        assert len(reply.actions) == (3 if "clear" in arguments else 1)


@needs_words
def test_what_ui_tars_is_offered_the_grammar_reads():
    text = load_family("ui_tars_15").opening("Open the file.", "English", ())[1]["content"][0]["text"]
    offered = text.split("## Action Space\n")[1].split("## Note")[0].strip().splitlines()
    assert len(offered) == 10
    for line in offered:
        call = line.replace("(x1,y1)", "(1,2)").replace("(x3,y3)", "(3,4)").replace("key=''", "key='a'")
        call = call.replace("type(content='')", "type(content='x')").replace("'down or up or right or left'", "'down'")
        assert len(load_family("ui_tars_15").parse(f"Action: {call}", Size(1932, 1092), Size(1920, 1080)).actions) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_the_experts_replies_are_the_same_actions_in_every_family(name):
    """As code: a drag by Qwen's tool is a move and then a drag from where the pointer is."""
    family, image, screen = load_family(name), Size(644, 476), Size(640, 480)
    for task in shipped_ids():
        for reply in expert_replies(task):
            read = family.read(family.format(reply, image, screen), image, screen)
            for ours, theirs in zip(inputs(read.actions), inputs(reply.actions), strict=True):
                assert ours == theirs or abs(ours - theirs) <= 1, task


HERE, THERE = Point(320, 240), Point(480, 120)  # whole in pixels and in thousandths


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("action", [Click(HERE), Move(HERE), Drag(HERE, THERE), Drag(THERE, HERE), Scroll("up", HERE)])
def test_a_position_in_fractions_is_refused(name, action):
    """They were all clicks at the corner, which is what the whole numbers say."""
    family, size = load_family(name), Size(1000, 1000)
    written = family.format(Reply("", (action,)), size, size)

    def read(x, y):
        return repr(family.read(written.replace("320", x).replace("240", y), size, size))

    assert all(f"Point(x={x}, y={y})" in read(str(x), str(y)) for x, y in ((0, 0), (0, 1), (1, 1), (1, 2)))
    for x, y in (("0.52", "0.31"), ("0.5", "1"), ("0", "0.001")):
        with pytest.raises(ActionParseError, match=f"got fractions of the image's sides: {x}, {y}"):
            read(x, y)


EPISODE = (
    *(Click(HERE), Click(HERE, "right"), Click(HERE, count=2), Move(THERE), Drag(HERE, THERE), Scroll("down", HERE)),
    *(Hotkey(("ctrl", "c")), Hotkey(("down",) * 3), TypeText('it\'s \\d "<\u00e9>"\n'), Wait(), Finish()),
)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_same_episode_does_the_same_on_a_desktop_in_every_family(name):
    desktop, family, screen = FakeEnvironment(), load_family(name), Size(640, 480)
    replies = [family.format(Reply("", (action,)), screen, screen) for action in EPISODE]
    conversation = PolicyConversation(lambda instruction, screenshots, said: replies[len(said)], None)
    config = GuiAgentConfig(max_steps=len(replies), model_family=name, between_actions_s=0)
    episode = play_blocking(Task("t", "Do it.", {}), desktop, conversation, config)
    assert len(episode.turns) == len(EPISODE) and inputs(desktop.actions) == inputs(EPISODE)


def inputs(actions):
    """What reaches the desktop, as numbers and words in a row."""
    code = "\n".join(str(action) if isinstance(action, (Finish, Fail)) else to_code(action) for action in actions)
    return [float(part) if part.isdigit() else part for part in re.split(r"(\d+)", code)]
