"""The one small interface through which a rollout meets a desktop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

from arpo_verl.errors import ConfigError
from arpo_verl.types import Action, Evaluation, GuestAnswer, GuestRequest, Observation, Task

Self = TypeVar("Self", bound="DesktopEnvironment")


class DesktopEnvironment(ABC):
    """A desktop that can be reset to a task, acted on and evaluated. Blocking; one user at a time.

    Every method may raise a `DesktopError`: then this desktop is to be thrown away, and the episode started anew on a
    fresh one; `step` and `evaluate` also a `DesktopEndedError`, where the policy itself ended the desktop: then the
    episode is over and scores 0. Nothing else escapes but `ConfigError` and `MissingDependencyError` from a first boot,
    which no fresh desktop would mend. A context manager, which closes it.
    """

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def prepare(self) -> None:  # noqa: B027  optional on purpose
        """Have a clean desktop running before a task is known, so that the next `reset` need not boot one.

        Optional: an environment that does not override it boots in `reset`.

        Raises:
            DesktopBootError: no desktop came up.
        """

    def is_ready(self) -> bool:
        """Whether a prepared desktop that waits for its next task is still alive. True where nothing can be asked."""
        return True

    @abstractmethod
    def reset(self, task: Task) -> Observation:
        """Give a clean desktop on which the task's set-up has run.

        Raises:
            DesktopBootError: no desktop came up.
            DesktopSetupError: the set-up steps did not complete.
        """

    @abstractmethod
    def step(self, action: Action) -> Observation:
        """Do `action`, wait the configured pause, and look at the screen.

        `Finish` and `Fail` end the episode for the evaluator; they still return an observation.

        Raises:
            DesktopLostError: the desktop died or stopped answering.
            DesktopEndedError: the policy ended it.
        """

    def look(self) -> Observation:
        """Look at the screen as it is just now. For a harness, whose program acts by `ask`.

        Optional, as `ask` is: an environment without them plays with our own loop, and with a harness that is a
        function.

        Raises:
            DesktopLostError, DesktopEndedError: see `step`.
        """
        raise ConfigError(f"environment.provider={type(self).__name__} has no guest that a harness's program can reach")

    def ask(self, request: GuestRequest) -> GuestAnswer:
        """Pass a request of OSWorld's guest protocol on. An answer of an error is one.

        Raises:
            DesktopLostError, DesktopEndedError: there is none; see `step`.
        """
        raise ConfigError(f"environment.provider={type(self).__name__} has no guest that a harness's program can reach")

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Ask the task's own evaluator for its verdict.

        Raises:
            EvaluatorError: it raised instead of giving one, or something that it swallowed stands behind it.
            DesktopEndedError: the policy ended the desktop.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back everything: processes, ports, directories. Safe to call twice."""
