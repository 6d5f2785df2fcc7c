"""Decide which of an evaluator's commands run apart from the desktop's session.

A command of the session is a process of the policy's own user, so another program of the policy's can write to its
output through `/proc`. Our guest server therefore runs a command elsewhere (`desktops/embedded/guest/apart.py`), if
that cannot change its answer. We mark such a command, and OSWorld's own server ignores the mark.

We mark only what we know: all of the command's programs are in `PROGRAMS` or `WITH_OPTION`, and we understand all of
its syntax. These programs read files, settings and the X server, and run nothing that the desktop's user may have put
there. Everything else runs in the session.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

from arpo_verl.desktops.osworld.calls import log

MARK = "apart"
PATHS = frozenset({"/execute", "/setup/execute"})
PROGRAMS = frozenset(
    {"[", "break", "cd", "continue", "echo", "exit", "false", "printf", "pwd", "test", "true"}  # mostly the shell's own
    | {"awk", "basename", "cat", "cmp", "cut", "diff", "dirname", "expr", "find", "grep", "head", "ls", "md5sum"}
    | {"paste", "readlink", "realpath", "seq", "sha256sum", "sleep", "sort", "stat", "tail", "tr", "uniq", "wc"}
    | {"wmctrl", "xclip", "xdotool", "xprop", "xsel", "xwininfo"}
)
WITH_OPTION = {"gsettings": ["get"], "python": ["-I", "-c"], "python3": ["-I", "-c"]}
"""Programs with the words that must come first: `-I` keeps what the user installed out of Python."""
SHELLS = frozenset({"bash", "sh"})
_FOLDERS = ("", "/bin", "/usr/bin")
_REFUSED = {"awk": ("-f", "--file", "-i", "--include"), "find": ("-delete", "-exec", "-fls", "-fprint", "-ok")}
"""Programs with the beginnings of options by which they run a file, or change one."""
_ELSEWHERE = ("/proc", "/dev/")
"""Folders that differ between the session and the other place."""
_BEFORE_COMMAND = frozenset({"!", "do", "done", "elif", "else", "fi", "if", "then", "until", "while", "{", "}"})

_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+)
    |(?P<end>\n|;|&&|\|\||\||\(|\))
    |(?P<read><(?![<(&>]))
    |(?P<word>(?:[^\s;&|()<>'"\\$`]|\\.|'[^']*'|"(?:[^"\\$`]|\\.|\$(?!\())*"|\$(?!\())+)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"[a-z_]+=")
"""A variable of the command's own: variables that programs read are in capitals."""


@contextlib.contextmanager
def commands_apart() -> Iterator[None]:
    """Mark the commands that this thread's client sends to a guest in this block, after the policy has worked there."""
    log.evaluates = True
    try:
        yield
    finally:
        log.evaluates = False


def marked(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's `json` and `data` of `requests`, with the mark if its command runs apart."""
    if not log.evaluates or path not in PATHS:
        return body
    try:
        asked = body["json"] if body.get("data") is None else json.loads(body["data"])
    except (TypeError, ValueError):
        return body
    if not isinstance(asked, dict) or not runs_apart(asked.get("command"), asked.get("shell", False)):
        return body
    changed = asked | {MARK: True}
    return body | ({"json": changed} if body.get("data") is None else {"data": json.dumps(changed)})


def runs_apart(command: Any, shell: Any = False) -> bool:
    """Return whether a command of a task file certainly needs nothing from the session."""
    if isinstance(command, str):
        return bool(shell) and _line_runs_apart(command)
    if shell or not command or not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return False
    if _program(command[0]) in SHELLS:
        return len(command) == 3 and command[1] == "-c" and _line_runs_apart(command[2])
    return not any(place in word for word in command for place in _ELSEWHERE) and _is_known(command)


def _line_runs_apart(line: str) -> bool:
    if any(place in line for place in _ELSEWHERE):
        return False
    while (inner := _SUBSTITUTION.search(line)) is not None:
        if not _line_runs_apart(inner[1]):
            return False
        line = f"{line[: inner.start()]}x{line[inner.end() :]}"
    commands = _commands(line)
    return commands is not None and all(map(_is_known, commands))


def _commands(line: str) -> list[list[str]] | None:
    """Return the words of each command of a line, quotes included; None if we do not understand its syntax."""
    commands: list[list[str]] = [[]]
    at, is_file = 0, False
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            return None
        at, word = token.end(), token["word"]
        if token["end"]:
            commands.append([])
        elif token["read"]:
            is_file = True
        elif word and is_file:
            is_file = False
        elif word and (commands[-1] or not (word in _BEFORE_COMMAND or _VARIABLE.match(word))):
            commands[-1].append(word)
    return [words for words in commands if words and words[0] != "for"]


def _is_known(words: list[str]) -> bool:
    program = _program(words[0])
    if program in WITH_OPTION:
        return words[1 : 1 + len(WITH_OPTION[program])] == WITH_OPTION[program]
    if program == "timeout":
        return len(words) > 2 and _is_known(words[2:])
    return program in PROGRAMS and not any(word.startswith(_REFUSED.get(program, ())) for word in words)


def _program(word: str) -> str:
    folder, _, name = word.rpartition("/")
    return name if folder in _FOLDERS and word != f"/{name}" else ""
