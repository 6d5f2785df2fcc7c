"""Decides whether a task may be evaluated during an episode: only if its evaluator changes nothing. Pure.

For a smaller turn budget, the evaluator runs while a longer episode goes on. If it might change the desktop, we play
separate episodes for the smaller budget.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arpo_verl.types import Task

READING_GETTERS = frozenset(
    (
        "accessibility_tree",
        "background_image_in_slide",
        "audio_in_slide",
        "bookmarks",
        "cache_file",
        "chrome_font_size",
        "chrome_language",
        "cloud_file",
        "content_from_vm_file",
        "cookie_data",
        "default_search_engine",
        "enable_do_not_track",
        "enable_safe_browsing",
        "gimp_config_file",
        "history",
        "list_directory",
        "profile_name",
        "rule",
        "rule_relativeTime",
        "vlc_config",
        "vm_file",
        "vm_screen_size",
        "vm_terminal_output",
        "vm_wallpaper",
        "vm_window_size",
    )
)
"""OSWorld's getters that only read files and states and start nothing, by `desktop_env.evaluators.getters`."""
_COMMANDS = ("vm_command_line", "vm_command_error")
READING_PROGRAMS = frozenset(
    "[ basename cat cmp cut diff dirname echo false grep head id ls md5sum pwd readlink sha256sum sleep stat tail "
    "test true uname wc which whoami".split()
)
"""Programs that change nothing, with any arguments."""
_SHELL_WORDS = frozenset("if then elif else fi while until do done break for !".split())
_COMMAND_ENDS = re.compile(r"&&|\|\||[;|&()\n]")


def why_not_midway(task: Task) -> str | None:
    """Return why the task's evaluator must not run during the episode; None if it may."""
    evaluator = task.spec.get("evaluator")
    if not isinstance(evaluator, Mapping):
        return "it has no evaluator of OSWorld's form"
    if evaluator.get("postconfig"):
        return "its evaluator acts on the desktop first (postconfig)"
    for getter in (*_each(evaluator.get("result")), *_each(evaluator.get("expected"))):
        kind = getter.get("type")
        if kind not in READING_GETTERS and not (kind in _COMMANDS and _only_reads(getter.get("command"))):
            return f"its evaluator's getter {kind} may change the desktop"
    return None


def describe_midway(tasks: Sequence[Task], budgets: Sequence[int], by_harness: bool = False) -> str:
    """Say in one line which tasks' smaller budgets come from episodes of the largest, and why others do not.

    Args:
        by_harness: whether a program plays.
    """
    why = "a harness plays, which does not wait for an evaluator" if by_harness else None
    reasons = Counter(reason for task in tasks if (reason := why or why_not_midway(task)))
    *smaller, largest = sorted(budgets)
    what = f"results for {', '.join(map(str, smaller))} turns come from the episodes of {largest} turns"
    if not reasons:
        return f"{what} for all {len(tasks)} tasks"
    told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    return (
        f"{what} for {len(tasks) - reasons.total()} of {len(tasks)} tasks; the others' longer episodes are played "
        f"again with each budget ({told})"
    )


def _each(getters: Any) -> Iterator[Mapping[str, Any]]:
    for getter in getters if isinstance(getters, list) else [getters]:
        if isinstance(getter, Mapping) and getter:
            yield getter


def _only_reads(command: Any) -> bool:
    """Return whether each program of a command certainly changes nothing."""
    if isinstance(command, list):
        return bool(command) and command[0] in READING_PROGRAMS
    if not isinstance(command, str) or any(mark in command for mark in ">`$<{"):
        return False
    return all(_first_program(part) in READING_PROGRAMS | {""} for part in _COMMAND_ENDS.split(command))


def _first_program(part: str) -> str:
    words = part.split()
    while words and words[0] in _SHELL_WORDS:
        if words.pop(0) == "for":
            return ""
    return words[0] if words else ""
