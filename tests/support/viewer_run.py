"""A run's folder, written piece by piece as a trainer writes it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from support.pictures import png


class ViewerRun:
    """Writes below `path`; what is not named is what a recorder of today would write."""

    def __init__(self, path: Path):
        self.path = path
        self.trajectories = path / "trajectories"
        self.trajectories.mkdir(parents=True)

    def folder(self, step: int, name: str) -> Path:
        folder = self.trajectories / f"step_{step:06d}" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def episode(
        self,
        step: int,
        task: str = "press-ok",
        uid: str = "u1",
        session: int = 0,
        success: float = 1.0,
        screenshots: int = 2,
        **content: Any,
    ) -> str:
        """Write a finished episode; returns its id."""
        folder = self.folder(step, f"{task}__{uid}_{session}")
        names = [f"{i:02d}.png" for i in range(screenshots)]
        for name in names:
            (folder / name).write_bytes(png())
        click = {"action": "Click", "point": [10, 20], "button": "left", "count": 1}
        turn = {"text": "Thought: press it.", "thought": "press it.", "actions": [click], "parse_error": None}
        episode = {
            "task_id": task,
            "instruction": f"Do {task}.",
            "step": step,
            "uid": uid,
            "session": session,
            "validation": False,
            "desktop": "desktop-0 on 127.0.0.1",
            "stop_reason": "finished",
            "success": success,
            "format_error": False,
            "reward": success,
            "num_turns": screenshots,
            "generate_s": 1.5,
            "desktop_s": 2.5,
            "started_at": 1_700_000_000.0 + step,
            "wall_s": 4.25,
            "image_size": [96, 64],
            "evaluator": [],
            "turns": [{"screenshot": i, **turn} for i in range(screenshots)],
            "screenshots": names,
            **content,
        }
        (folder / "episode.json").write_text(json.dumps(episode), encoding="utf-8")
        return f"step_{step:06d}/{folder.name}"

    def tokens(self, episode: str, replies: object, *trained: object) -> None:
        """Write an episode's tokens, and a line for each training step that trained on them."""
        folder = self.trajectories / episode
        (folder / "tokens.json").write_text(json.dumps(replies), encoding="utf-8")
        lines = "".join(json.dumps(line) + "\n" for line in trained)
        (folder / "log_probs.jsonl").write_text(lines, encoding="utf-8")

    def group(self, step: int, uid: str, *rows: dict[str, Any], task: str = "press-ok") -> None:
        """Append a group's line; a row is `{"session", "reward", "advantage", "replay"}`."""
        line = {"uid": uid, "task_id": task, "step": step, "rows": [{"replay": None, **row} for row in rows]}
        file = self.trajectories / f"step_{step:06d}" / "groups.jsonl"
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def metrics(self, step: int, **data: Any) -> None:
        """Append a line as veRL's `file` logger does; `__` in a name stands for a slash."""
        named = {name.replace("__", "/"): value for name, value in data.items()}
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, "data": named}) + "\n")

    def live(self, step: int, name: str = ".u9_0.abc", turns: int = 1, **content: Any) -> Path:
        """Write an episode that is being played; returns its folder."""
        folder = self.folder(step, name)
        for i in range(turns + 1):
            (folder / f"{i:02d}.png").write_bytes(png("gray"))
        reply = {"text": "Thought: go on.", "thought": "go on.", "actions": [{"action": "Wait"}], "parse_error": None}
        live = {
            "task_id": "press-ok",
            "instruction": "Do press-ok.",
            "uid": "u9",
            "session": 0,
            "step": step,
            "started_at": time.time(),
            "desktop": "desktop-1 on 127.0.0.1",
            "turns": [{"screenshot": i, **reply} for i in range(turns)],
            **content,
        }
        (folder / "live.json").write_text(json.dumps(live), encoding="utf-8")
        return folder

    def pool(self, written: float | None = None, **content: Any) -> None:
        state = {"time": time.time() if written is None else written, "desktops": [], "waiting": 0, **content}
        (self.path / "pool.json").write_text(json.dumps(state), encoding="utf-8")
