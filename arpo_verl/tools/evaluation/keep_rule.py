"""A keep rule says which tasks a training list keeps, such as `1 <= successes <= 15`. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from arpo_verl.errors import ConfigError

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_OPERATOR = "<=|>=|<|>|="
_RULE = re.compile(
    rf"\s*(?:({_NUMBER})\s*({_OPERATOR})\s*)?(successes|rate)\s*(?:({_OPERATOR})\s*({_NUMBER})\s*)?", re.ASCII
)
_MIRRORED = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "=": "="}
_FORM = "a range of successes or of their rate, such as '1 <= successes <= 15', 'successes >= 1' or '0.1 <= rate < 0.9'"


@dataclass(frozen=True)
class KeepRule:
    """Keeps a task if from `low` to `high` of its `runs` runs succeed."""

    low: int
    high: int
    runs: int

    @classmethod
    def parse(cls, text: str, runs: int) -> KeepRule:
        """Read `[NUMBER OPERATOR] successes|rate [OPERATOR NUMBER]`; the operators are <=, <, >=, > and =.

        Args:
            runs: number of runs of each task; a `rate` is successes / runs.

        Raises:
            ConfigError: it has another form, names more successes than runs, or keeps either every task or none.
        """
        match = _RULE.fullmatch(text)
        if match is None or not (match[2] or match[4]):
            raise ConfigError(f"--keep must be {_FORM}, got {text!r}")
        left, left_operator, name, right_operator, right = match.groups()
        scale = runs if name == "rate" else 1
        low, high = 0, runs
        for operator, number in ((_MIRRORED.get(left_operator or ""), left), (right_operator, right)):
            if operator is not None:
                if Fraction(number) * scale > runs:
                    most_of = "1, as a rate" if name == "rate" else f"--runs={runs}"
                    raise ConfigError(f"--keep must name numbers up to {most_of}; got {text!r}")
                # As fractions, so that 0.1 of 10 runs is one.
                least, most = _whole_bounds(operator, Fraction(number) * scale)
                low, high = max(low, least), min(high, runs if most is None else most)
        if low > high:
            raise ConfigError(f"--keep={text!r} keeps no task: no number of successes from 0 to --runs={runs} fits")
        if (low, high) == (0, runs):
            raise ConfigError(f"--keep={text!r} keeps all tasks, with 0 to {runs} successes; give a smaller range")
        return cls(low, high, runs)

    def verdict(self, solved: int, played: int) -> bool | None:
        """Return whether the task is kept, if `solved` of `played` runs settle that for sure; otherwise None."""
        left = self.runs - played
        if self.low <= solved and solved + left <= self.high:
            return True
        if solved > self.high or solved + left < self.low:
            return False
        return None


def _whole_bounds(operator: str, number: Fraction) -> tuple[int, int | None]:
    """Return the least and most whole number (None: any) that fulfil `operator` and `number`."""
    if operator == "=":
        return math.ceil(number), math.floor(number)
    if operator in ("<=", "<"):
        return 0, math.floor(number) if operator == "<=" else math.ceil(number) - 1
    return (math.ceil(number) if operator == ">=" else math.floor(number) + 1), None
