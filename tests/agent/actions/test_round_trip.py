"""What is written in any family's grammar reads back: the same thought, and the same input."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arpo_verl.agent.actions.keys import KEY_NAMES
from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.agent.actions.reply import CoordinateFrame, Reply
from arpo_verl.agent.models.family import SHIPPED, load_family
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Scroll, Size, TypeText, Wait

SIZES = st.builds(Size, st.integers(28, 4000), st.integers(28, 4000))
CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t")
TEXTS = st.text(CHARACTERS, min_size=1, max_size=60)
THOUGHTS = st.text(st.characters(codec="utf-8", exclude_characters=":<"), max_size=40)
KEYS = st.lists(st.sampled_from(sorted(KEY_NAMES)), min_size=1, max_size=4).map(tuple)


def is_written(family, action, image, screen):
    try:
        return bool(family.format(Reply("", (action,)), image, screen))
    except ActionParseError:  # the grammar lacks it
        return False


@st.composite
def replies(draw):
    """Replies of a family whose points lie on the model's own coordinates, as those of every parsed reply do."""
    name, image, screen = draw(st.sampled_from(SHIPPED)), draw(SIZES), draw(SIZES)
    family = load_family(name)
    axes = image if family.coordinates == "pixels" else Size(1000, 1000)

    def point():
        place = draw(st.integers(0, axes.width)), draw(st.integers(0, axes.height))
        return CoordinateFrame(axes, screen).to_screen(*place)

    def maybe():
        return point() if draw(st.booleans()) else None

    kinds = [
        lambda: Click(maybe(), draw(st.sampled_from(["left", "right", "middle"])), draw(st.integers(1, 3))),
        lambda: Move(point()),
        lambda: Drag(maybe(), point()),
        lambda: Hotkey(draw(KEYS)),
        lambda: TypeText(draw(TEXTS)),
        lambda: Scroll(
            draw(st.sampled_from(["up", "down", "left", "right"])), maybe(), draw(st.none() | st.integers(1, 100))
        ),
        Wait,
        lambda: Finish(draw(TEXTS | st.just(""))),
        Fail,
    ]
    drawn = [draw(st.sampled_from(kinds))() for _ in range(draw(st.integers(1, 3)))]
    actions = tuple(action for action in drawn if is_written(family, action, image, screen)) or (Wait(),)
    return name, Reply(draw(THOUGHTS).replace("\r\n", "\n").strip(), actions), image, screen


def inputs(actions):
    """What a desktop gets: a drag by Qwen's tool is a move, and then a drag from where the pointer is."""
    return "\n".join(str(one) if isinstance(one, (Finish, Fail)) else to_code(one) for one in actions)


@given(replies())
@example(
    ("small", Reply("", (Hotkey(("ctrl", "+", "-", "a")), Hotkey(("ctrl", "&", "a")))), Size(28, 28), Size(28, 28))
)
@settings(max_examples=400)
def test_what_is_written_reads_back(case):
    name, reply, image, screen = case
    family = load_family(name)
    read = family.read(family.format(reply, image, screen), image, screen)
    assert read.thought == reply.thought and inputs(read.actions) == inputs(reply.actions)


@pytest.mark.parametrize(
    "text",
    ["<p class='a'>é &amp; \"b\"</p>\n" * 43, "\n".join(f"line {n}: {'=' * 40}" for n in range(176)), "日本" * 2600],
    ids=["html", "ascii", "cjk"],
)
@pytest.mark.parametrize("name", SHIPPED)
def test_ordinary_long_text_is_not_refused(name, text):
    family, size, actions = load_family(name), Size(364, 252), (TypeText(text),)
    assert family.read(family.format(Reply("", actions), size, size), size, size).actions == actions
