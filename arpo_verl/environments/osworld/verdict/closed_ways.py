"""The ways from what a policy made to code that judges it, or past it, in OSWorld's metrics and libraries: closed.

A box keeps such code from everything else, but a verdict is made in there too. So nothing of a desktop's data may
become code, name another file, or stand for the file that it is compared with. The client's own files stay as they are:
our names take the place of some in its modules, as `client` does with `requests`. docs/verdicts.md lists each way.
"""

from __future__ import annotations

import ast
import importlib
import sys
from typing import Any

from arpo_verl.errors import EvaluatorError

_BASIC_OS = "desktop_env.evaluators.metrics.basic_os"
_VSCODE = "desktop_env.evaluators.metrics.vscode"
MAX_LITERAL_CHARACTERS = 1 << 16


class HostileData(BaseException):
    """What the policy made tries to be more than data: its own doing. No `except Exception` of a metric takes it."""


class Unjudgeable(BaseException):
    """There can be no verdict, whatever a metric that catches everything would make of it."""


def close_all() -> None:
    """Close them in this process, whose client is imported."""
    vars(sys.modules[_BASIC_OS])["eval"] = literal
    vars(sys.modules[_VSCODE])["importlib"] = _NoImports()


def allow_imports(allowed: bool) -> None:
    """Whether a metric may import the policy's files, which can then give itself any score."""
    if allowed:
        vars(sys.modules[_VSCODE])["importlib"] = importlib


def literal(text: str) -> Any:
    """A Python literal's value, in the place of `eval`; what is none equals nothing that a task expects.

    Raises:
        EvaluatorError: there is no text: the guest's command printed nothing, which says nothing of its desktop.
    """
    if not isinstance(text, str) or not text.strip():
        raise EvaluatorError("a command of the evaluator's printed nothing in the guest")
    if len(text) > MAX_LITERAL_CHARACTERS:
        raise HostileData(f"a value of {len(text)} characters")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return [object()]


class _NoImports:
    def __getattr__(self, name: str) -> Any:
        raise Unjudgeable(
            "check_python_file_by_test_suite imports what the policy wrote, which can then give itself any score; "
            "leave the task out, or set environment.evaluator_runs_policy_code=true"
        )
