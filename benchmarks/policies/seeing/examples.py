"""What the expert does in generated tasks, one example a reply, with all that can be read on the screen before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from arpo_verl.actions.ui_tars import format_reply, parse_reply
from arpo_verl.tasks.families import generate
from arpo_verl.tasks.families.generation import draw_plan
from arpo_verl.tasks.families.kinds import Opened, Plan
from arpo_verl.tasks.families.lexicon import WORDS
from arpo_verl.tasks.families.windows import close_button
from policies.seeing.layout import SCREEN
from policies.seeing.screens import Text, moved

LEXICON = (*WORDS, "OK")
"""All words that the policy reads and names."""


@dataclass(frozen=True)
class Example:
    """One reply of the expert, and what it follows from."""

    task_id: str
    family: str
    step: int
    instruction: str
    earlier: tuple[str, ...]
    """Its replies before this one."""
    thought: str
    clicked: Text | None
    """What it presses; None: it is done."""
    note: str | None
    """The title of the window that says what to press, where one does."""
    texts: tuple[Text, ...]
    """On the screen."""

    @property
    def named(self) -> str | None:
        """The word that its thought names."""
        return None if self.clicked is None else self.thought.split()[1].rstrip(".")

    @property
    def reply(self) -> str:
        """As the policy writes it."""
        point = None if self.clicked is None else self.clicked.target
        action = "finished()" if point is None else f"click(start_box='({point[0]:g},{point[1]:g})')"
        return format_reply(parse_reply(f"Thought: {self.thought}\nAction: {action}", SCREEN, SCREEN), SCREEN, SCREEN)

    def moved(self, dx: int, dy: int) -> Example | None:
        """On a screen that is moved by so many pixels; None: what it presses leaves it."""
        clicked = None if self.clicked is None else moved(self.clicked, dx, dy)
        if (clicked is None) != (self.clicked is None):
            return None
        texts = (moved(text, dx, dy) for text in self.texts)
        return replace(self, clicked=clicked, texts=tuple(text for text in texts if text is not None))


def examples_of(split: str, index: int) -> Iterator[Example]:
    """One example for each reply to a generated task, in order."""
    (family, plan), task = draw_plan(split, index), generate(split, index)
    note = task.spec["instruction"].split("window ")[1].split()[0] if family == "follow" else None
    earlier: list[str] = []
    for step, reply in enumerate(task.replies):
        shown = [text for window in _open(family, plan, step) for text in texts_of(window)]
        clicked = None
        for press in plan.presses[step : step + 1]:
            clicked = next(t for t in shown if t.text == press.text and t.target == (press.point.x, press.point.y))
        instruction: str = task.spec["instruction"]
        example = Example(
            task_id=task.spec["id"],
            family=family,
            step=step,
            instruction=instruction,
            earlier=tuple(earlier),
            thought=reply["thought"],
            clicked=clicked,
            note=note,
            texts=tuple(shown),
        )
        yield example
        earlier.append(example.reply)


def texts_of(opened: Opened) -> list[Text]:
    """The texts of a window, its title first; a click on the title is one on the button that closes the window."""
    window, at = opened.window, opened.at
    title, *labels = window.labels(at)
    texts = [Text(title.text, title.box, (), True, close_button(window, at), window.title)]
    for label in labels:
        is_note = label.text == getattr(window, "text", None)
        middle = ((label.box.left + label.box.right) // 2, (label.box.top + label.box.bottom) // 2)
        target = middle if is_note else window.target(label.text, at)
        texts.append(Text(label.text, label.box, (), False, target, window.title))
    return texts


def _open(family: str, plan: Plan, step: int) -> list[Opened]:
    """The windows that can be seen before the reply of this number."""
    done = step == len(plan.presses)
    if family in ("two", "three"):  # each press brings the next window to light
        return [] if done else [plan.windows[-1 - step]]
    if not done:
        return list(plan.windows)
    if family == "close":
        return [one for one in plan.windows if one.window.title != plan.presses[0].text]
    return [one for one in plan.windows if plan.presses[-1].point not in [t.target for t in texts_of(one)]]
