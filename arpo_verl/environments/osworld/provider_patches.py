"""The client's own providers made fit for processes that host many desktops in threads; their code is left as it is."""

from __future__ import annotations

import functools
import importlib
import logging
import signal
import subprocess
import threading
from typing import Any

from arpo_verl.desktop.machine_provider import MachineProvider
from arpo_verl.environments.config import EnvironmentConfig

logger = logging.getLogger(__name__)

# Their managers handle signals while they start a machine.
_CLOUDS = ("aws", "aliyun", "volcengine")


class _MainThreadSignals:
    """`signal`, whose handlers Python lets only the main thread set: in a desktop's thread, none are.

    What a killed process leaves in a cloud ends by the instance's time to live, which the providers set.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return signal.signal(number, handler)
        return None


def adapt_module(name: str) -> None:
    """Before the client makes a provider of this name."""
    if name in _CLOUDS:
        vars(importlib.import_module(f"desktop_env.providers.{name}.manager"))["signal"] = _MainThreadSignals()
    if name == "vmware":
        # The client does not wait for vmrun: a machine whose revert takes more than 3 s would go on as it was.
        module = importlib.import_module("desktop_env.providers.vmware.provider")
        module.VMwareProvider._execute_command = staticmethod(_run_and_wait)
    if name == "azure":
        # desktop-env 1.0.2 forgot its `delete_vm`, which nobody calls: the class could not be instantiated.
        importlib.import_module("desktop_env.providers.azure.manager").AzureVMManager.__abstractmethods__ = frozenset()


def adapt_provider(provider: Any, config: EnvironmentConfig, desktop_id: str) -> None:
    """Before the client starts a machine with this provider object."""
    if config.provider == "docker":
        _adapt_docker(provider, config, desktop_id)


def why_gone(provider: Any, config: EnvironmentConfig) -> str:
    """Why the machine that this provider object started is no more; empty where it runs, or only the guest knows.

    A container that has died gives its ports back, and the next one to start gets them: its guest answers in the place
    of the dead one's.
    """
    if isinstance(provider, MachineProvider):
        try:
            return provider.why_gone()
        except Exception as error:  # a user's class may ask a service that does not answer
            return f"its provider cannot say: {type(error).__name__}: {error}"
    if config.provider != "docker":
        return ""
    from arpo_verl.environments.osworld.docker_containers import why_not_running

    return why_not_running(provider.container)


def why_ended(provider: Any, config: EnvironmentConfig) -> str:
    """Return how the guest's own programs ended the desktop, or "" unless the machine proves that they did."""
    if config.provider == "docker":
        from arpo_verl.environments.osworld.docker_containers import why_powered_off

        return why_powered_off(provider.container)
    if not isinstance(provider, MachineProvider):
        return ""
    try:
        return provider.why_ended()
    except Exception:
        logger.warning("a provider cannot say whether its guest's programs ended it", exc_info=True)
        return ""


def remove_leftovers(config: EnvironmentConfig, desktop_id: str) -> None:
    """After a desktop was closed: what its provider forgot, or is still starting in a call that hangs."""
    if config.provider == "docker":
        from arpo_verl.environments.osworld.docker_containers import DesktopDocker

        client = DesktopDocker.of_desktop(desktop_id, {})
        try:
            client.remove_containers()
        finally:
            client.close()


def _run_and_wait(command: list[str], return_output: bool = False) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    return done.stdout.strip() if return_output else None


def _adapt_docker(provider: Any, config: EnvironmentConfig, desktop_id: str) -> None:
    from desktop_env.providers.docker import provider as module

    from arpo_verl.environments.osworld import docker_containers

    docker_containers.guard_this_process()
    provider.client.close()
    provider.client = docker_containers.DesktopDocker.of_desktop(desktop_id, config.provider_options)
    docker_containers.pull_if_missing(provider.client, config.provider_options.get("image", docker_containers.IMAGE))
    # All desktops of a host take turns under one lock, and a boot without KVM takes longer than the client waits.
    module.LOCK_TIMEOUT = config.boot_timeout_s
    module.WAIT_TIME = 0  # its rest after a container was removed: the start of the next one looks at the ports anew
    provider._wait_for_vm_ready = functools.partial(docker_containers.await_guest, provider, config.boot_timeout_s)
