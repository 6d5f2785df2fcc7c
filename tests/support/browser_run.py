"""A run for the page to show: every kind of action on screenshots with a known target, a replay, hostile text."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from arpo_verl.records.frontier import append_estimates
from arpo_verl.records.layout import FRONTIER_FILE
from arpo_verl.tasks.frontier import TaskEstimate
from support.viewer_run import ViewerRun

TARGET = (480, 380)
"""Centre of the red square of every screenshot, in pixels of the screen."""
NUM_STEPS = 30
PLAIN_TASKS = 8
TEA = "order-tea"
INSTRUCTION = "Order a cup of tea with milk."
MARKUP = "<img src=x onerror=\"window.ran=1;alert('ran')\"><script>window.ran=1</script><b>bold</b>"
HOSTILE_TASK = f"hostile {MARKUP}"
CLICK = {"action": "Click", "point": list(TARGET), "button": "left", "count": 1}


@dataclass(frozen=True)
class BrowserRun:
    """The run, and the ids of the episodes that tests open."""

    run: ViewerRun
    winner: str
    """A success of step 1 with every kind of action; replayed into step 2."""
    replaced: str
    """A failure of step 2; the winner took its place."""
    hostile: str
    bare: str
    """Its screenshots were not kept."""
    windowed: str
    """Of eight steps, of which the model saw at most three screenshots: six rows."""
    segmented: str
    """Of eight steps in three rows of at most four screenshots, each begun with two."""
    num_episodes: int


def make_run(folder: Path) -> BrowserRun:
    """Write the run to `folder`."""
    run = ViewerRun(folder)
    _tea(run, 1, "tea-a", 0, 0.0, _failure())
    winner = _tea(run, 1, "tea-a", 1, 1.0, _every_action())
    replaced = _tea(run, 2, "tea-b", 0, 0.0, _failure())
    _tea(run, 2, "tea-b", 1, 0.0, _failure())
    _tea(run, 5, "tea-v", 0, 1.0, _failure(), validation=True)
    hostile = _write_hostile(run)
    windowed = _write_rows(run, "windowed", [(0, 3), *((first, 3) for first in range(1, 6))])
    segmented = _write_rows(run, "segmented", [(0, 4), (3, 4), (6, 2)])
    plain = [_write_plain(run, step, task) for step in range(1, NUM_STEPS + 1) for task in range(PLAIN_TASKS)]
    replay = {"step": 1, "uid": "tea-a", "session": 1}
    run.group(1, "tea-a", _row(0, 0.0, -1.0), _row(1, 1.0, 1.0), task=TEA)
    run.group(2, "tea-b", {**_row(0, 1.0, 1.0), "replay": replay}, _row(1, 0.0, -1.0), task=TEA)
    for step in range(1, NUM_STEPS + 1):
        validation = {"val-core__embedded__acc__mean@1": step / NUM_STEPS} if step % 5 == 0 else {}
        run.metrics(step, rollout__success_mean=step / NUM_STEPS, actor__entropy=1 / step, **validation)
    _write_frontier(run)
    ids = (winner, replaced, hostile, plain[0], windowed, segmented)
    return BrowserRun(run, *ids, num_episodes=8 + len(plain))


def _write_frontier(run: ViewerRun) -> None:
    rates = {HOSTILE_TASK: (0.03, 0.0, 0.3, 4, 0.1), "plain-2": (0.45, 0.2, 0.8, 15, 0.7), TEA: (0.9, 0.5, 1.0, 5, 0.2)}
    estimates = [TaskEstimate(task_id, *values) for task_id, values in rates.items()]
    append_estimates(run.trajectories / FRONTIER_FILE, NUM_STEPS, estimates)


def play(run: ViewerRun, *, turns: int, task_id: str = TEA) -> None:
    """Write what a desktop in the middle of an episode shows, and the pool's state."""
    run.live(31, turns=turns, task_id=task_id)
    states = ["busy", "idle", "booting"]
    common = {"host": "192.0.2.1", "task_id": None, "since": time.time()}
    run.pool(desktops=[{**common, "name": f"desktop-{i}", "state": state} for i, state in enumerate(states)], waiting=1)


def _tea(
    run: ViewerRun, step: int, uid: str, session: int, success: float, turns: list[dict[str, Any]], **content: Any
) -> str:
    call = {"metric": "exact_match", "result": "'milk\\n'", "expected": "{'expected': 'tea'}", "returned": str(success)}
    content = {"instruction": INSTRUCTION, "evaluator": [call], "turns": _numbered(turns), **content}
    reason = "finished" if success else "failed"
    content = {"programs": ["kettle", "cups"], **content}
    episode = run.episode(step, TEA, uid, session, success, len(turns), stop_reason=reason, **content)
    _draw_screenshots(run, episode, len(turns))
    replies = [reply_of(turn["text"]) for turn in turns]
    values = [value + 0.3 for reply in replies for value in reply["log_probs"]]
    run.tokens(episode, replies, {"step": step, "log_probs": values})
    return episode


def reply_of(text: str) -> dict[str, Any]:
    """A reply of `tokens.json`: a token a word or mark, each less likely than the one before."""
    texts = [*re.findall(r"\s*(?:\w+|.)", text, re.DOTALL), "<|im_end|>"]
    return {"token_ids": [7] * len(texts), "texts": texts, "log_probs": [-0.4 * place for place in range(len(texts))]}


def _write_hostile(run: ViewerRun) -> str:
    """Markup wherever a model or a task can put text."""
    typed = {"action": "TypeText", "text": f"{MARKUP}</script>\u2028\u202e"}
    turns = [_turn(MARKUP, typed, thought=MARKUP), {**_turn(MARKUP), "parse_error": f"expected a call, got {MARKUP}"}]
    content = {
        "task_id": HOSTILE_TASK,
        "instruction": MARKUP,
        "desktop": MARKUP,
        "stop_reason": "parse_error",
        "format_error": True,
        "evaluator": [{name: MARKUP for name in ("metric", "result", "expected", "returned")}],
        "turns": _numbered(turns),
    }
    episode = run.episode(2, "hostile", "evil", 0, 0.0, len(turns), programs=[MARKUP], **content)
    _draw_screenshots(run, episode, len(turns))
    run.tokens(episode, [reply_of(MARKUP), {"token_ids": [1, 2], "texts": [MARKUP]}])
    return episode


def _write_rows(run: ViewerRun, task: str, shown: list[tuple[int, int]]) -> str:
    """An episode whose rows show these screenshots: the first and how many."""
    turns: list[dict[str, Any]] = []
    for first, count in shown:
        new = range(len(turns), first + count)
        turns += [{**_turn("Action: click(...)", CLICK), "first_screenshot": first} for _ in new]
    tokens = {"prompt_tokens": 400, "response_tokens": 250, "reply_tokens": 40}
    rows = [{**tokens, "first_screenshot": first, "num_screenshots": count} for first, count in shown]
    sums = {"prompt_tokens": 400 * len(rows), "response_tokens": 250 * len(rows)}
    episode = run.episode(3, task, screenshots=len(turns), turns=_numbered(turns), rows=rows, **sums)
    _draw_screenshots(run, episode, len(turns))
    return episode


def _write_plain(run: ViewerRun, step: int, task: int) -> str:
    """An episode whose screenshots were not kept; the later, the more of them succeed."""
    success = float(step * PLAIN_TASKS > task * NUM_STEPS)
    episode = run.episode(step, f"plain-{task}", f"p{task}", 0, success, turns=_numbered(_failure()))
    for screenshot in (run.trajectories / episode).glob("*.png"):
        screenshot.unlink()
    return episode


def _every_action() -> list[dict[str, Any]]:
    typed, saved = {"action": "TypeText", "text": "milk, please\n"}, {"action": "Hotkey", "keys": ["ctrl", "s"]}
    return [
        _turn("Action: click(...)", CLICK),
        _turn("Action: left_double(...)", {**CLICK, "count": 2}),
        _turn("Action: right_single(...)", {**CLICK, "button": "right"}),
        _turn("Action: drag(...)", {"action": "Drag", "start": [100, 120], "end": [400, 300]}),
        _turn("Action: scroll(...)", {"action": "Scroll", "direction": "down", "point": None, "notches": 3}),
        _turn("Action: type(...)\nhotkey(...)", typed, saved),
        _turn("Action: finished()", {"action": "Finish", "answer": ""}),
    ]


def _failure() -> list[dict[str, Any]]:
    return [_turn("Action: click(...)", {**CLICK, "point": [100, 100]}), _turn("Action: fail()", {"action": "Fail"})]


def _turn(text: str, *actions: dict[str, Any], thought: str = "Go on.") -> dict[str, Any]:
    turn = {"text": text, "thought": thought, "actions": list(actions), "parse_error": None}
    return {**turn, "generate_s": 0.25, "desktop_s": 0.5}


def _numbered(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"screenshot": index, **turn} for index, turn in enumerate(turns)]


def _row(session: int, reward: float, advantage: float) -> dict[str, Any]:
    return {"session": session, "reward": reward, "advantage": advantage}


def _draw_screenshots(run: ViewerRun, episode: str, count: int) -> None:
    for index in range(count):
        _draw(f"screenshot {index}").save(run.trajectories / episode / f"{index:02d}.png")


def _draw(title: str) -> Image.Image:
    image = Image.new("RGB", (640, 480), (74, 104, 130))
    draw = ImageDraw.Draw(image)
    draw.rectangle((60, 60, 580, 420), fill=(245, 244, 242), outline=(40, 40, 40))
    draw.rectangle((60, 60, 580, 84), fill=(120, 160, 215))
    draw.text((70, 66), title, fill=(255, 255, 255))
    x, y = TARGET
    draw.rectangle((x - 10, y - 10, x + 10, y + 10), fill=(200, 0, 0))
    return image
