"""This module follows a script with the values that it gives its variables, and collects the commands it starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial

from arpo_verl.migration.shell import tree
from arpo_verl.migration.shell.arithmetic import compute
from arpo_verl.migration.shell.conditions import decide, is_literal, tested_unset
from arpo_verl.migration.shell.parser import ASSIGNED, parse
from arpo_verl.migration.shell.tree import Block, Node
from arpo_verl.migration.shell.values import PER_COMMAND, PER_WORD, Field, Value, Values, merge
from arpo_verl.migration.shell.words import Part, Token

MAX_ROUNDS = 16
"""Most values of a loop's variable that are followed one by one."""
MAX_CALLS = 8
"""Deepest nesting of functions, and of scripts in words."""

_SAYING = {"echo", "printf", "log", "pkill", "pgrep", "grep", "ps", "alias", "trap", "wandb", ":"}
_ASSIGNING = {"export", "declare", "typeset", "local", "readonly"}
_READING = {"read", "mapfile", "readarray", "getopts"}
_COMPUTED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")


class Reader:
    """The reader follows a script. It follows both ways if only running the script could decide a condition.

    Args:
        environment: variables that are set when the script starts.
        is_script: returns whether a command's word is itself a script, such as that of `bash -c`.

    Attributes:
        started: the words of every command that the script may start.
        sourced: other scripts that the script sources.
    """

    def __init__(self, environment: dict[str, str], is_script: Callable[[str], bool]):
        self._values = Values({name: Field(text) for name, text in environment.items()})
        self._is_script = is_script
        self._functions: dict[str, Block] = {}
        self._called: set[str] = set()
        self._depth = 0
        self._ended = False
        self.started: list[tuple[Field, ...]] = []
        self.sourced: list[str] = []

    def read(self, text: str) -> None:
        """Follow a script from its first line to its last.

        Raises:
            ConfigError: `text` is no shell script, or has too much to follow.
        """
        self._run(parse(text))
        for name, body in list(self._functions.items()):
            if name not in self._called:  # not called by name, but it may be run in another way
                self._values.arguments = ()
                self._alone(body)

    # --- Blocks --------------------------------------------------------------------------------------------------

    def _run(self, block: Block) -> bool | None:
        """Return whether the last command succeeds; None if only running it could show that."""
        status: bool | None = True
        for node in block:
            if self._ended:
                break
            self._values.spend(PER_COMMAND)
            status = self._follow(node)
        return status

    def _follow(self, node: Node) -> bool | None:
        match node:
            case tree.Simple():
                return self._command(node)
            case tree.Array():
                words = tuple(found for word in node.words for found in self._values.fields(word))
                self._values.assign(node.name, words, node.adds)
                return True
            case tree.Arithmetic():
                return self._compute(node.source)
            case tree.Chain():
                return self._chain(node)
            case tree.If():
                return self._if(node)
            case tree.Case():
                return self._case(node)
            case tree.Loop():
                return self._loop(node)
            case tree.Function():
                self._functions[node.name] = node.body
                self._called.discard(node.name)
                return True
            case tree.CommandGroup():
                return self._alone(node.body) if node.is_subshell else self._run(node.body)

    def _alone(self, block: Block) -> bool | None:
        """Follow a block whose assignments and end do not affect the rest."""
        before = dict(self._values.variables)
        status = self._run(block)
        self._values.variables, self._ended = before, False
        return status

    def _either(self, arms: list[Block], complete: bool, defaults: set[str]) -> None:
        """Follow every arm; `complete` says that one of them certainly runs."""
        before = self._values.variables
        outcomes: list[dict[str, Value]] = [] if complete else [before]
        for arm in arms:
            self._values.spend(PER_WORD * len(before))
            self._values.variables = dict(before)
            self._run(arm)
            outcomes += [] if self._ended else [self._values.variables]
            self._ended = False
        self._ended = not outcomes
        self._values.variables = merge(outcomes, defaults) if outcomes else before

    def _chain(self, chain: tree.Chain) -> bool | None:
        status = self._follow(chain.first)
        test: Node = chain.first
        for joint, node in chain.rest:
            if status is None:
                self._either([(node,)], False, tested_unset((test,)))
            elif status is (joint == "&&"):
                status = self._follow(node)
        return status

    def _if(self, node: tree.If) -> bool | None:
        possible: list[Block] = []
        complete, defaults = False, set[str]()
        for test, body in node.arms:
            status = self._run(test) if test else True
            if status is True and not possible:
                return self._run(body)
            if status is not False:
                possible.append(body)
                defaults |= tested_unset(test)
            complete = status is True
            if complete:
                break
        self._either(possible, complete, defaults)
        return None

    def _case(self, node: tree.Case) -> bool | None:
        subject = self._values.whole(node.subject.parts)
        arms = [([word.text for word in words], body) for words, body in node.arms]
        if subject.because is None and all(is_literal(text) for texts, _ in arms for text in texts):
            fitting = [body for texts, body in arms if any(fnmatchcase(subject.text[:200], text) for text in texts)]
            return self._run(fitting[0]) if fitting else True
        self._either([body for _, body in arms], any("*" in texts for texts, _ in arms), set())
        return None

    def _loop(self, loop: tree.Loop) -> bool | None:
        self._run(loop.test)
        rounds = None if loop.words is None else [found for word in loop.words for found in self._values.fields(word)]
        if loop.name is not None:
            one_by_one = rounds is not None and len(rounds) <= MAX_ROUNDS
            if rounds is not None and one_by_one and all(_is_plain(found) for found in rounds):
                for found in rounds:
                    self._values.assign(loop.name, found)
                    self._run(loop.body)
                return None
            self._values.assign(loop.name, Field(f"${loop.name}", f"a loop gives {loop.name} several values"))
        self._either([loop.body], False, set())
        return None

    # --- Commands ------------------------------------------------------------------------------------------------

    def _command(self, node: tree.Simple) -> bool | None:
        words = list(node.words)
        assigned: list[tuple[str, Value, bool]] = []
        while words and (found := ASSIGNED.match(words[0].text)) is not None:
            assigned.append((found[1], self._values.whole(_behind(words[0], found.end())), bool(found[2])))
            words = words[1:]
        if not words:
            for name, value, adds in assigned:
                self._values.assign(name, value, adds)
            return True
        if words[0].text in _ASSIGNING:
            return self._declare(words[1:])
        fields = [found for word in words for found in self._values.fields(word)]
        if not fields:
            return None
        self._start(fields, node)
        return self._built_in(fields, words)

    def _declare(self, words: list[Token]) -> bool:
        for word in words:
            found = ASSIGNED.match(word.text)
            if found is not None:
                self._values.assign(found[1], self._values.whole(_behind(word, found.end())), bool(found[2]))
                continue
            for given in self._values.fields(word):
                if (found := ASSIGNED.match(given.text)) is not None:
                    self._values.assign(found[1], Field(given.text[found.end() :], given.because))
        return True

    def _start(self, fields: list[Field], node: tree.Simple) -> None:
        name = fields[0].text.rpartition("/")[2]
        if name in _SAYING:
            return
        self.started.append(tuple(fields))
        scripts = [found.text for found in fields[1:] if self._is_script(found.text) and " " in found.text.strip()]
        if name == "eval":
            scripts = [" ".join(found.text for found in fields[1:])]
        if (name != "cat" or node.redirected) and not name.startswith("python"):
            scripts += [text for text in node.documents if self._is_script(text)]
        for script in scripts:
            self._call(partial(self._script, script))

    def _script(self, text: str) -> bool | None:
        return self._alone(parse(text))

    def _built_in(self, fields: list[Field], words: list[Token]) -> bool | None:
        name, given = fields[0].text, [found.text for found in fields[1:]]
        if name in self._functions:
            self._called.add(name)
            return self._function(name, tuple(fields[1:]))
        if name in ("[", "[[", "test"):
            return decide([word.text for word in words[1:]], fields[1:], self._values.variables)
        if name in ("source", ".") and given:
            self.sourced.append(given[0])
        elif name in ("exit", "return"):
            self._ended = True
        elif name == "unset":
            for one in given:
                self._values.variables.pop(one, None)
        elif name == "shift" and self._values.arguments:
            self._values.arguments = self._values.arguments[1:]
        elif name in _READING:
            for one in given:
                self._values.assign(one, Field(f"${one}", f"the script reads {one} from elsewhere"))
        elif name == "let":
            return self._compute(" ".join(given))
        return {"true": True, ":": True, "false": False, "echo": True, "set": True}.get(name)

    def _function(self, name: str, arguments: tuple[Field, ...]) -> bool | None:
        outer, self._values.arguments = self._values.arguments, arguments
        status = self._call(partial(self._run, self._functions[name]))
        self._values.arguments, self._ended = outer, False
        return status

    def _call(self, run: Callable[[], bool | None]) -> bool | None:
        if self._depth >= MAX_CALLS:
            return None
        self._depth += 1
        status = run()
        self._depth -= 1
        return status

    def _compute(self, source: str) -> bool | None:
        found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", source, re.S)
        value = compute(found[2], self._number) if found else None
        for name in _COMPUTED.findall(source):
            unknown = Field(f"${name}", f"`(({' '.join(source.split())[:60]}))` is not computed")
            self._values.assign(name, unknown if value is None else Field(str(value)))
        return None

    def _number(self, name: str) -> str | None:
        value = self._values.variables.get(name)
        return value.text if isinstance(value, Field) and value.because is None else None


def _behind(word: Token, length: int) -> tuple[Part, ...]:
    """Return the parts of a word after its first `length` letters, which are plain."""
    first = word.parts[0]
    return (Part(first.text[length:]), *word.parts[1:])


def _is_plain(found: Field) -> bool:
    return found.because is None and not re.search(r"[*?\[{]", found.text)
