"""Find out which programs a task uses, from its set-up and its evaluator. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from arpo_verl.desktops.osworld.task_files import getters_of, steps_of

_COMMAND_STEPS = {"launch", "execute", "command", "execute_with_verification", "bundle_command"}
_COMMAND_GETTERS = {"vm_command_line", "vm_command_error"}
_BROWSER_STEPS = {"chrome_open_tabs", "chrome_close_tabs"}

# Commands of the shell itself, and words before a program's own name.
_SHELL_WORDS = set(
    "alias bg break case cd continue declare do done echo elif else esac eval exit export false fi for function "
    "history if in let local printf pwd read return set shift source test then time trap true type ulimit umask unset "
    "until wait while [ [[ ! . :".split()
)
_WRAPPERS = {"env", "exec", "nice", "nohup", "setsid", "sudo"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PROGRAM = re.compile(r"[A-Za-z][A-Za-z0-9_.+\-]*")
_SEPARATORS = {";", "&", "&&", "|", "||", "(", ")", "{", "}"}
_PROGRAM_FOLDERS = {"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/snap/bin"}

# OSWorld's names in `related_apps` -> programs. Its other words (`os`, `pdf`, `image`) name no program.
_APPS = {
    "chrome": "google-chrome",
    "gimp": "gimp",
    "libreoffice calc": "localc",
    "libreoffice impress": "loimpress",
    "libreoffice writer": "lowriter",
    "picard": "picard",
    "terminal": "x-terminal-emulator",
    "thunderbird": "thunderbird",
    "ubuntu media player": "totem",
    "vlc": "vlc",
    "vs code": "code",
    "vscode": "code",
}


def programs_of(spec: Mapping[str, Any]) -> list[str]:
    """Return the programs that a task's set-up and evaluator start, and those that it is about, each once.

    It splits a shell command at its operators, and leaves out words that are not clearly a program's name (a script's
    path, a variable). So each listed program is needed, but some may be missing.
    """
    found = dict.fromkeys(words[0] for words in commands_of(spec))
    if any(step["type"] in _BROWSER_STEPS for step in steps_of(spec)):
        found["google-chrome"] = None
    apps = (str(app).lower().replace("_", " ") for app in spec.get("related_apps") or [])
    found.update(dict.fromkeys(_APPS[app] for app in apps if app in _APPS))
    return list(found)


def commands_of(spec: Mapping[str, Any]) -> list[list[str]]:
    """Return every command of a task's set-up and evaluator as words, the program's name first."""
    parts = [step["parameters"] for step in steps_of(spec) if step["type"] in _COMMAND_STEPS]
    parts += [getter for getter in getters_of(spec) if getter["type"] in _COMMAND_GETTERS]
    return [words for part in parts for words in _commands(part)]


def opened_files(spec: Mapping[str, Any]) -> list[str]:
    """Return the paths of files that a task's set-up opens with the default program for their type."""
    return [str(step["parameters"].get("path", "")) for step in steps_of(spec) if step["type"] == "open"]


def _commands(parameters: Mapping[str, Any]) -> Iterator[list[str]]:
    command, shell = parameters.get("command", ""), parameters.get("shell")
    if isinstance(command, str):
        # The client splits a command without a shell at its spaces.
        yield from _of_shell(command) if shell else _of_words(command.split())
    elif shell:
        # The first item of a list for a shell is the script, as in subprocess.
        yield from _of_shell(str(command[0]) if command else "")
    else:
        yield from _of_words([str(word) for word in command])


def _of_words(words: list[str]) -> Iterator[list[str]]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS or words[0].startswith("-")):
        words = words[1:]
    if not words:
        return
    path = PurePosixPath(words[0])
    name = path.name if str(path.parent) in _PROGRAM_FOLDERS else words[0]
    if name in ("sh", "bash") and len(words) >= 3 and re.fullmatch(r"-[a-z]*c", words[1]):
        yield [name, *words[1:]]
        yield from _of_shell(words[2])
    elif _PROGRAM.fullmatch(name) and name not in _SHELL_WORDS:
        yield [name, *words[1:]]


def _of_shell(script: str) -> Iterator[list[str]]:
    # A here-document's body has no commands, so stop at the line that opens one.
    lines = script.split("\n")
    for line in lines[: next((n + 1 for n, text in enumerate(lines) if "<<" in text), len(lines))]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:  # a quotation over several lines
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
