"""Adapt the client's own providers to processes that host many desktops in threads, at run time."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import subprocess
import threading
from typing import Any

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import DesktopBootError

logger = logging.getLogger(__name__)

# Their managers handle signals while they start a machine.
_CLOUDS = ("aws", "aliyun", "volcengine")


class _MainThreadSignals:
    """Stands for `signal`: in a desktop's thread it sets no handler, which Python allows in the main thread only.

    If a process is killed, its cloud machines end by the time to live that the providers set.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return signal.signal(number, handler)
        return None


def adapt_module(name: str) -> None:
    """Adapt a provider's module, before the client makes a provider of this name."""
    if name in _CLOUDS:
        vars(importlib.import_module(f"desktop_env.providers.{name}.manager"))["signal"] = _MainThreadSignals()
    if name == "vmware":
        # The client does not wait for vmrun: if a revert takes more than 3 s, the machine would stay as it was.
        module = importlib.import_module("desktop_env.providers.vmware.provider")
        module.VMwareProvider._execute_command = staticmethod(_run_and_wait)
    if name == "azure":
        # desktop-env 1.0.2 lacks `delete_vm`, which nobody calls, so the class cannot be instantiated.
        importlib.import_module("desktop_env.providers.azure.manager").AzureVMManager.__abstractmethods__ = frozenset()


def adapt_provider(provider: Any, config: EnvironmentConfig, desktop_id: str) -> None:
    """Adapt this provider object, before the client starts a machine with it."""
    if config.provider != "docker":
        return
    from desktop_env.providers.docker import provider as module

    from arpo_verl.desktops.osworld import docker_containers

    docker_containers.guard_this_process()
    provider.client.close()
    provider.client = docker_containers.DesktopDocker.of_desktop(desktop_id, config.provider_options)
    docker_containers.pull_if_missing(provider.client, config.provider_options.get("image", docker_containers.IMAGE))
    # Nobody can open another user's lock in /tmp. If two users take one port at once, the engine refuses the second.
    provider.lock_file = provider.lock_file.with_name(f"{provider.lock_file.stem}-{os.geteuid()}.lck")
    # A host's desktops take turns under one lock, and a boot without KVM takes longer than the client's own time-out.
    module.LOCK_TIMEOUT = config.boot_timeout_s
    module.WAIT_TIME = 0  # its pause after removing a container: not needed, the next start looks at the ports again
    provider._wait_for_vm_ready = functools.partial(docker_containers.await_guest, provider, config.boot_timeout_s)
    # As a `MachineProvider` has them.
    provider.why_gone = lambda: docker_containers.why_not_running(provider.container)
    provider.why_ended = lambda: docker_containers.why_powered_off(provider.container)


def why_gone(provider: Any) -> str:
    """Return why the machine of this provider object is gone; empty if it runs, or if only the guest can show that.

    A dead container's ports go to the next one that starts, whose guest then answers in place of the dead one.
    """
    try:
        reason: str = provider.why_gone() if hasattr(provider, "why_gone") else ""
        return reason
    except Exception as error:  # a user's class may ask a service that does not answer
        return f"its provider cannot say: {type(error).__name__}: {error}"


def why_ended(provider: Any) -> str:
    """Return how the guest's own programs ended the desktop, or "" unless the machine proves that they did."""
    try:
        proof: str = provider.why_ended() if hasattr(provider, "why_ended") else ""
        return proof
    except Exception:
        logger.warning("a provider cannot say whether its guest's programs ended it", exc_info=True)
        return ""


def remove_leftovers(config: EnvironmentConfig, desktop_id: str) -> None:
    """Remove what a closed desktop's provider forgot, or is still starting in a call that hangs."""
    if config.provider == "docker":
        from arpo_verl.desktops.osworld.docker_containers import DesktopDocker

        client = DesktopDocker.of_desktop(desktop_id, {})
        try:
            client.remove_containers()
        finally:
            client.close()


def _run_and_wait(command: list[str], return_output: bool = False) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode and "revertToSnapshot" in command:  # else the next episode would begin where the last one ended
        raise DesktopBootError(f"{' '.join(command)} failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout.strip() if return_output else None
