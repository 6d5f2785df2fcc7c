"""Held-out variants of shipped tasks: another wording of the instruction, and the windows in another place.

    python benchmarks/held_out.py    # play the expert's script, moved as the windows are, on every variant

The evaluator and the programs stay, so the moved script must solve each.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arpo_verl.actions.ui_tars import Reply
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.policy.demonstrations import collect_demonstrations
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies
from arpo_verl.tasks.loader import EMBEDDED_DIR
from arpo_verl.types import Action, Point

SUFFIX = "-held-out"


@dataclass(frozen=True)
class Variant:
    """What a held-out task changes."""

    instruction: str
    shift: Point
    """By which every window moves, in pixels of the 640x480 screen."""
    window: str | None = None
    """Title of the window that is moved after its start; None where the programs are told their place."""


VARIANTS = {
    "window-close-beta": Variant("Shut the Beta window.", Point(-30, -40)),
    "code-copy-seven": Variant("Enter the code on display in the second window.", Point(30, 25)),
    "password-log-in": Variant("The password is 1234. Log in.", Point(-60, 40), "Login"),
    "code-copy-four": Variant("Enter the code on display in the second window.", Point(30, 25)),
    "calculator-copy-product": Variant("What is 12*3? Copy the result.", Point(40, 20), "galculator"),
    "dialog-follow-right": Variant("Do what the window says and press that button.", Point(-40, 60)),
    "radio-size-large": Variant("The size is Large. Choose it.", Point(50, 40), "Size"),
    "text-copy-ticket": Variant("Put the ticket into the other window.", Point(0, 30)),
    "form-order-juice": Variant("Order a Juice, and Ice with it.", Point(40, 60)),
    "scale-volume-one": Variant("The volume is to be 1.", Point(40, 80)),
    "calculator-to-dialog": Variant("Enter the result of 6*7, with the calculator.", Point(10, 15)),
    "files-new-folder": Variant("In the file manager, make the folder docs.", Point(60, 30), "box"),
    "list-scroll-zebra": Variant("The list has Zebra. Choose it.", Point(-50, 30), "Animals"),
    "files-delete-old": Variant("The file old.txt is to be deleted.", Point(60, 30), "box"),
    "scale-volume-three": Variant("The volume is to be 3.", Point(40, 80)),
    "files-rename-folder": Variant("The folder draft is to be named final.", Point(60, 30), "work"),
}
"""By the shipped task's id: the half of the suite on which a balanced imitation is hardest; see `learning.py`."""


def write_variants(folder: Path, task_ids: Sequence[str]) -> Path:
    """Write the held-out variants of shipped tasks into `folder`, one file a task."""
    folder.mkdir(parents=True, exist_ok=True)
    for task_id in task_ids:
        spec = json.loads((EMBEDDED_DIR / f"{task_id}.json").read_text(encoding="utf-8"))
        text = json.dumps(held_out(spec, VARIANTS[task_id]), indent=2)
        (folder / f"{task_id}{SUFFIX}.json").write_text(text + "\n", encoding="utf-8")
    return folder


def held_out(spec: dict[str, Any], variant: Variant) -> dict[str, Any]:
    """A task's specification with the variant's instruction and places."""
    spec = copy.deepcopy(spec) | {"id": spec["id"] + SUFFIX, "instruction": variant.instruction}
    if variant.window is None:
        for step in spec["config"]:
            if step["type"] == "launch":
                step["parameters"]["command"] = _moved(step["parameters"]["command"], variant.shift)
        return spec
    starts = [i for i, step in enumerate(spec["config"]) if step["type"] == "launch"]
    spec["config"].insert(starts[-1] + 1, _move_step(variant.window, variant.shift))
    return spec


def _moved(command: str | list[str], shift: Point) -> str | list[str]:
    """A command with its `WIDTHxHEIGHT+X+Y` moved."""
    if isinstance(command, list):
        return [_moved_text(part, shift) for part in command]
    return _moved_text(command, shift)


def _moved_text(text: str, shift: Point) -> str:
    return re.sub(
        r"(\d+x\d+)\+(\d+)\+(\d+)",
        lambda m: f"{m[1]}+{int(m[2]) + shift.x}+{int(m[3]) + shift.y}",
        text,
    )


def _move_step(window: str, shift: Point) -> dict[str, Any]:
    """A set-up step that moves a window as soon as it is there."""
    search = f"xdotool search --onlyvisible --name '^{window}$'"
    loop = f'for i in $(seq 200); do w=$({search} | head -n 1); [ -n "$w" ] && break; sleep 0.05; done'
    # The frame's corner: the window's own less its offset in the frame, as xwininfo tells both.
    corner = "set -- $(xwininfo -id $w | sed -n 's/.*upper-left [XY]: *//p')"
    move = f"wmctrl -i -r $w -e 0,$(($1 - $3 + {shift.x})),$(($2 - $4 + {shift.y})),-1,-1"
    command = f"{loop}; {corner}; {move}"
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def moved_script(task_id: str) -> list[Reply]:
    """The expert's replies to a held-out variant, with points moved as its windows are."""
    task_id = task_id.removesuffix(SUFFIX)
    shift = VARIANTS[task_id].shift
    return [replace(r, actions=tuple(_shifted(a, shift) for a in r.actions)) for r in expert_replies(task_id)]


def _shifted(action: Action, shift: Point) -> Action:
    points = {name: value for name, value in vars(action).items() if isinstance(value, Point)}
    return replace(action, **{name: Point(p.x + shift.x, p.y + shift.y) for name, p in points.items()})


def check_solvable(folder: Path) -> None:
    """Play the moved script on every variant in `folder`.

    Raises:
        TaskError: a variant is not solved by it.
    """
    collect_demonstrations(
        load_tasks(folder), moved_script, EnvironmentConfig(num_desktops=2), lambda screen: screen, repeats=1
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        check_solvable(write_variants(Path(name), list(VARIANTS)))
