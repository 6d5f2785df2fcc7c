"""Which programs a task's set-up starts, read from its steps. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

_COMMAND_STEPS = {"launch", "execute", "command", "execute_with_verification"}

# What a shell does itself, and words after which the program's own name comes.
_SHELL_WORDS = set(
    "alias bg break case cd continue declare do done echo elif else esac eval exit export false fi for function if in "
    "let local printf pwd read return set shift source test then time trap true type ulimit umask unset until wait "
    "while [ [[ ! . :".split()
)
_WRAPPERS = {"env", "exec", "nice", "nohup", "setsid", "sudo"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PROGRAM = re.compile(r"[A-Za-z][A-Za-z0-9_.+\-]*")
_SEPARATORS = {";", "&", "&&", "|", "||", "(", ")", "{", "}"}


def programs_of(spec: Mapping[str, Any]) -> list[str]:
    """The programs that a task's set-up and its evaluator's `postconfig` start, by name, in order, each once.

    A shell command is split by its operators; what is not plainly a program's name (a path, a variable) is left out, so
    a listed name may be trusted and a missing one is possible.
    """
    steps = [*spec.get("config", []), *spec.get("evaluator", {}).get("postconfig", [])]
    found: dict[str, None] = {}
    for step in steps:
        if step["type"] in _COMMAND_STEPS:
            found.update(dict.fromkeys(_programs(step["parameters"])))
    return list(found)


def _programs(parameters: Mapping[str, Any]) -> Iterator[str]:
    command = parameters.get("command", "")
    if isinstance(command, str):
        # The client splits a launch command that is not for a shell at spaces.
        yield from _of_shell(command) if parameters.get("shell") else _of_words(command.split())
    elif parameters.get("shell"):
        # A list for a shell: its first item is the script, as in subprocess.
        yield from _of_shell(str(command[0]) if command else "")
    else:
        yield from _of_words([str(word) for word in command])


def _of_words(words: list[str]) -> Iterator[str]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS or words[0].startswith("-")):
        words = words[1:]
    if not words:
        return
    if words[0] in ("sh", "bash") and len(words) >= 3 and re.fullmatch(r"-[a-z]*c", words[1]):
        yield words[0]
        yield from _of_shell(words[2])
    elif _PROGRAM.fullmatch(words[0]) and words[0] not in _SHELL_WORDS:
        yield words[0]


def _of_shell(script: str) -> Iterator[str]:
    # A here-document's body is not commands: look no further than the line that opens one.
    lines = script.split("\n")
    for line in lines[: next((n + 1 for n, text in enumerate(lines) if "<<" in text), len(lines))]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:  # a quotation that runs over several lines
            return
        words: list[str] = []
        for token in [*tokens, ";"]:
            if token not in _SEPARATORS:
                words.append(token)
                continue
            while words and words[0] in ("then", "do", "else", "if", "while", "until", "!", "time"):
                words = words[1:]
            yield from _of_words(words)
            words = []
