"""The one small interface that a rollout uses to work with a desktop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

from arpo_verl.errors import ConfigError
from arpo_verl.types import Action, Evaluation, GuestAnswer, GuestRequest, Observation, Task

Self = TypeVar("Self", bound="DesktopEnvironment")


class DesktopEnvironment(ABC):
    """A desktop that can be reset to a task, acted on and evaluated. Calls block; it has one user at a time.

    Every method may raise a `DesktopError`: throw this desktop away, and start the episode again on a fresh one. `step`
    and `evaluate` may also raise a `DesktopEndedError`: the policy itself ended the desktop, so the episode is over and
    scores 0. The only other errors are `ConfigError` and `MissingDependencyError` from a first boot, which a fresh
    desktop would not cure. As a context manager it closes itself.
    """

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def prepare(self) -> None:  # noqa: B027  optional on purpose
        """Boot a clean desktop before its task is known, so that the next `reset` need not boot one.

        This is optional: an environment that does not override it boots in `reset`.

        Raises:
            DesktopBootError: no desktop came up.
        """

    def is_ready(self) -> bool:
        """Return whether a prepared desktop that waits for a task is still alive; True if there is no way to ask."""
        return True

    @abstractmethod
    def reset(self, task: Task) -> Observation:
        """Run the task's set-up on a clean desktop, and return the first observation.

        Raises:
            DesktopBootError: no desktop came up.
            DesktopSetupError: the set-up steps did not complete.
        """

    @abstractmethod
    def step(self, action: Action) -> Observation:
        """Do `action`, wait the configured pause, and look at the screen.

        `Finish` and `Fail` do nothing on the screen, the evaluator reads them; they still return an observation.

        Raises:
            DesktopLostError: the desktop died or stopped answering.
            DesktopEndedError: the policy ended it.
        """

    def look(self) -> Observation:
        """Look at the screen as it is now. A harness needs this: its program acts through `ask`.

        This is optional, as `ask` is. An environment without them works with our own loop, and with a harness that is a
        function.

        Raises:
            DesktopLostError, DesktopEndedError: see `step`.
        """
        raise ConfigError(f"environment.provider={type(self).__name__} has no guest that a harness's program can reach")

    def ask(self, request: GuestRequest) -> GuestAnswer:
        """Pass a request of OSWorld's guest protocol to the desktop. An error status is an answer too.

        Raises:
            DesktopLostError, DesktopEndedError: the desktop did not answer; see `step`.
        """
        raise ConfigError(f"environment.provider={type(self).__name__} has no guest that a harness's program can reach")

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Ask the task's own evaluator for its verdict.

        Raises:
            EvaluatorError: it raised instead of giving a verdict, or it hid an error that may have changed the verdict.
            DesktopEndedError: the policy ended the desktop.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back everything: processes, ports, directories. Safe to call twice."""
