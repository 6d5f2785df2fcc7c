"""From the option `gui_agent.harness` to what plays."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, Protocol

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.types import StopReason, Task

if TYPE_CHECKING:
    from arpo_verl.agent.harness.client import HarnessClient
    from arpo_verl.agent.harness.played_desktop import PlayedDesktop


class Program(Protocol):
    """What plays an episode: a user's function, or what runs a user's command.

    It returns why the episode ended; None: it finished, or what it said by `Finish` or `Fail`. An `ActionError` that it
    raises is the policy's doing: the reply is malformed. Any other error drops the episode.
    """

    async def __call__(self, task: Task, client: HarnessClient, desktop: PlayedDesktop, /) -> StopReason | None: ...


def load_program(config: GuiAgentConfig) -> Program:
    """What the recipe names.

    Raises:
        ConfigError: it is no async function, or cannot be imported.
    """
    harness = config.harness
    assert harness is not None, "asked for where there is one"
    if isinstance(harness, str) and " " not in harness.strip():
        return _function(harness)
    from arpo_verl.agent.harness.command_program import CommandProgram  # and the sandbox's modules with it

    return CommandProgram(config)


def _function(name: str) -> Program:
    module, _, attribute = name.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"gui_agent.harness must name an importable package.module:function, got {name!r}: {error}; install it for "
            "every Python that plays"
        ) from error
    if not inspect.iscoroutinefunction(function if inspect.isroutine(function) else type(function).__call__):
        raise ConfigError(f"gui_agent.harness must name an async function, got {name!r}, a {type(function).__name__}")
    program: Program = function
    return program
