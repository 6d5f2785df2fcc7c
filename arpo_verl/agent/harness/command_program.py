"""A harness that is a command: it is given addresses and a token, and its exit status says how the episode ended."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from arpo_verl.agent.harness.client import HarnessClient
from arpo_verl.agent.harness.command import CommandEnd, run_command
from arpo_verl.agent.harness.guest_proxy import GuestProxy
from arpo_verl.agent.harness.played_desktop import PlayedDesktop
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import HarnessError
from arpo_verl.types import Fail, StopReason, Task

INFEASIBLE, MALFORMED = 3, 65
"""Exit statuses: the task cannot be done; the policy's reply is none that can be acted on (sysexits' EX_DATAERR)."""
LOG_MB = 1.0
"""Of what a command prints; more ends it."""

_PROXIES: WeakKeyDictionary[asyncio.AbstractEventLoop, GuestProxy] = WeakKeyDictionary()


class CommandProgram:
    """Runs the recipe's command once an episode; see `arpo_verl.agent.harness.loading.Program`."""

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
        proxy = _PROXIES.setdefault(asyncio.get_running_loop(), GuestProxy())
        address = await proxy.open(client.token, desktop, self._config.harness_shell)
        given = {
            "endpoint": client.url,
            "token": client.token,
            "desktop": address,
            "instruction": task.instruction,
            "task_id": task.task_id,
        }
        environment = {name: value.format_map(given) for name, value in self._config.harness_env.items()}
        ports = (urlsplit(client.url).port or 0, proxy.port)
        with tempfile.TemporaryDirectory(prefix="arpo_verl-harness-") as folder:
            log = Path(folder, "log")
            try:
                end = await run_command(
                    self._command,
                    environment,
                    log=log,
                    memory_mb=self._config.harness_memory_mb,
                    log_mb=LOG_MB,
                    ports=ports,
                    network=self._config.harness_network,
                )
            finally:
                if log.exists():
                    client.log = log.read_bytes()
                await proxy.close(client.token)
        return await _outcome(end, desktop)


async def _outcome(end: CommandEnd, desktop: PlayedDesktop) -> StopReason | None:
    if end.reason or end.returncode not in (0, INFEASIBLE, MALFORMED):
        why = end.reason or f"it ended with status {end.returncode}"
        raise HarnessError(f"the harness's command failed: {why}; its last words: {end.log_tail or 'none'}")
    if end.returncode == INFEASIBLE:
        await desktop.step(Fail())
    return StopReason.PARSE_ERROR if end.returncode == MALFORMED else None
