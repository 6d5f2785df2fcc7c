"""Turn the option `gui_agent.harness` into what plays: a user's function, or a command in a sandbox."""

from __future__ import annotations

import inspect
import shlex
import tempfile
from pathlib import Path
from typing import Protocol

from arpo_verl.agent.harness.client import HarnessClient
from arpo_verl.agent.harness.command import CommandEnd, run_command
from arpo_verl.agent.harness.command_start import HOST
from arpo_verl.agent.harness.played_desktop import PlayedDesktop
from arpo_verl.agent.harness.server import shared_server
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ConfigError, HarnessError
from arpo_verl.lib.config import load_named
from arpo_verl.types import Fail, StopReason, Task

INFEASIBLE, MALFORMED = 3, 65
"""Exit statuses: the task cannot be done; the policy's reply is none that can be acted on (sysexits' EX_DATAERR)."""
LOG_MB = 1.0
"""Of what a command prints; more ends it."""


class Program(Protocol):
    """Plays an episode: a user's function, or what runs a user's command.

    It returns why the episode ended; None: it finished, or what it said by `Finish` or `Fail`. An `ActionError` that it
    raises is the policy's doing: the reply is malformed. Any other error drops the episode.
    """

    async def __call__(self, task: Task, client: HarnessClient, desktop: PlayedDesktop, /) -> StopReason | None: ...


def load_program(config: GuiAgentConfig) -> Program:
    """Return the program that the recipe names.

    Raises:
        ConfigError: it is no async function, or cannot be imported.
    """
    harness = config.harness
    assert harness is not None, "asked for where there is one"
    if isinstance(harness, str) and " " not in harness.strip():
        return _function(harness)
    return CommandProgram(config)


def _function(name: str) -> Program:
    function = load_named("gui_agent.harness", name, "a command, or package.module:function")
    if not inspect.iscoroutinefunction(function if inspect.isroutine(function) else type(function).__call__):
        raise ConfigError(f"gui_agent.harness must name an async function, got {name!r}, a {type(function).__name__}")
    program: Program = function
    return program


class CommandProgram:
    """A program that is a command: it gets addresses and a token, and its exit status says how the episode ended."""

    def __init__(self, config: GuiAgentConfig):
        harness = config.harness or ()
        self._command = shlex.split(harness) if isinstance(harness, str) else list(harness)
        self._config = config

    async def __call__(self, task: Task, client: HarnessClient, desktop: PlayedDesktop, /) -> StopReason | None:
        """Run it.

        Raises:
            HarnessError: it ended by an error of its own, or used up what it may take.
            ConfigError: this machine cannot run it.
        """
        server = await shared_server()
        given = {
            "endpoint": client.url,
            "token": client.token,
            "desktop": f"http://desktop:{client.token}@{HOST}:{server.port}",
            "instruction": task.instruction,
            "task_id": task.task_id,
        }
        environment = {name: value.format_map(given) for name, value in self._config.harness_env.items()}
        with tempfile.TemporaryDirectory(prefix="arpo_verl-harness-") as folder:
            log = Path(folder, "log")
            async with server.guests.serving(client.token, desktop, self._config.harness_shell):
                try:
                    end = await run_command(
                        self._command,
                        environment,
                        log=log,
                        memory_mb=self._config.harness_memory_mb,
                        log_mb=LOG_MB,
                        ports=[server.port],
                        network=self._config.harness_network,
                    )
                finally:  # before the wait for a request under way, which may last longer than the episode
                    if log.exists():
                        client.log = log.read_bytes()
        return await _outcome(end, desktop)


async def _outcome(end: CommandEnd, desktop: PlayedDesktop) -> StopReason | None:
    if end.reason or end.returncode not in (0, INFEASIBLE, MALFORMED):
        why = end.reason or f"it ended with status {end.returncode}"
        raise HarnessError(f"the harness's command failed: {why}; its last words: {end.log_tail or 'none'}")
    if end.returncode == INFEASIBLE:
        await desktop.step(Fail())
    return StopReason.PARSE_ERROR if end.returncode == MALFORMED else None
