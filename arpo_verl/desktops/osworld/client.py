"""Import the unmodified OSWorld client without heavy packages, and raise what the client only logs.

Importing it imports `desktop_env`, which takes seconds and 200 MB. Only `environment.py` does that, in workers.
"""

from __future__ import annotations

import builtins
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import requests

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.machine_provider import MachineProvider
from arpo_verl.desktops.osworld.absent_results import Absence, AbsentResultError, score_absent_results
from arpo_verl.desktops.osworld.bundles import BundleSteps
from arpo_verl.desktops.osworld.calls import count_calls, counted, log
from arpo_verl.desktops.osworld.guest_http import GuestHttp, ask, told_by_guest, unanswered
from arpo_verl.desktops.osworld.lean_imports import deferred_imports
from arpo_verl.desktops.osworld.pages import failed_calls, note_pages, noted_playwright
from arpo_verl.desktops.osworld.provider_patches import adapt_module, adapt_provider
from arpo_verl.errors import DesktopBootError, DesktopSetupError, MissingDependencyError
from arpo_verl.types import is_bundle

logger = logging.getLogger(__name__)

# We raise the failures that the client logs, with the guest's words, so its log is off. A level set before stays.
_client_logger = logging.getLogger("desktopenv")
if _client_logger.level == logging.NOTSET:
    _client_logger.setLevel(logging.CRITICAL)
# At import it complains about a missing file of proxies, which only tasks with a proxy need.
_proxy_logger = logging.getLogger("desktopenv.providers.aws.ProxyPool")
_proxy_logger.addFilter(_nothing := lambda record: False)

try:
    with deferred_imports():
        import desktop_env.desktop_env as desktop_env_module
        from desktop_env.controllers.python import PythonController
        from desktop_env.controllers.setup import SetupController
except ImportError as error:
    raise MissingDependencyError(
        f"the OSWorld client cannot be imported: {error}; run `arpo-verl install-osworld`, or set "
        "environment.py_executable to a Python that has it"
    ) from error
finally:
    _proxy_logger.removeFilter(_nothing)

GUEST_POLL_S = 0.1
_environment_lock = threading.Lock()


class Controller(PythonController):
    """Sends an action only once, and keeps its result, which `DesktopEnv.step` drops."""

    retry_times: int
    last_result: dict[str, Any] | None = None

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.failed_commands: list[tuple[str, Any]] = []
        """Python commands that ended with an error, with the error; no getter looks at that."""

    def execute_python_command(self, command: str) -> Any:
        # Repeating a click after a lost reply would click twice.
        attempts, self.retry_times = self.retry_times, 1
        try:
            self.last_result = super().execute_python_command(command)
        finally:
            self.retry_times = attempts
        if isinstance(self.last_result, dict) and self.last_result.get("returncode") != 0:
            self.failed_commands.append((command, self.last_result.get("error")))
        return self.last_result


class TaskSetup(BundleSteps, SetupController):
    """Runs a task's steps, and raises a failure that the parent only logs.

    A program that does not start, a command that the guest does not run and a guest that does not answer are failures.
    A step may try to activate or close a window that does not exist: tasks rely on that.
    """

    boot_timeout_s = 300.0
    evaluating = False
    """Whether the steps are a task's postconfig: by then the policy may have removed what they use."""

    def setup(self, config: list[dict[str, Any]], use_proxy: bool = False) -> bool:
        self._await_guest()
        begin = len(log.exchanges)
        done: bool = super().setup(config, use_proxy)
        lost = unanswered(self._address, log.exchanges[begin:])
        lost = [e for e in lost if not (self.evaluating and told_by_guest(e))]
        if lost or not done:
            raise DesktopSetupError(f"the guest {self._address} did not answer: {lost or 'set-up gave up'}")
        # A page that takes too long may still show; one that the network refused is an error page.
        refused = [call for call in failed_calls() if call.host and "net::ERR_" in call.error]
        if refused and not self.evaluating:
            raise DesktopSetupError(f"a page of the task could not be loaded: {refused[0].error}")
        return done

    def _launch_setup(self, command: str | list[str], shell: bool = False) -> None:
        super()._launch_setup(command, shell)
        self._require_ok("/setup/launch", command)

    def _execute_setup(self, command: str | list[str], *args: Any, **kwargs: Any) -> None:
        super()._execute_setup(command, *args, **kwargs)
        self._require_ok("/setup/execute", command)

    @property
    def _address(self) -> str:
        return f"{self.vm_ip}:{self.server_port}"

    def _require_ok(self, path: str, command: str | list[str]) -> None:
        wanted = (log.call, self._address, path)
        last = next((e for e in reversed(log.exchanges) if (e.caller, e.address, e.path) == wanted), None)
        if last is not None and self.evaluating and told_by_guest(last):
            return
        if last is None or last.status != 200:
            came = "nothing sent" if last is None else last.error or f"HTTP {last.status} {last.body}"
            raise DesktopSetupError(f"the guest did not run {command!r}: {came}")

    def _await_guest(self) -> None:
        """Wait for the guest, polling often: the parent sleeps 5 s after each refusal."""
        deadline = time.monotonic() + self.boot_timeout_s
        while True:
            try:
                ask("GET", f"{self.http_server}/terminal", timeout=30).close()
                return
            except requests.RequestException as error:
                if time.monotonic() > deadline:
                    raise DesktopBootError(f"the guest {self._address} does not answer: {error}") from error
            time.sleep(GUEST_POLL_S)


def _noting_absence(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a set-up step: in a postconfig it raises `AbsentResultError` if what it needs was removed by the policy."""

    @functools.wraps(step)
    def run(self: TaskSetup, *args: Any, **parameters: Any) -> Any:
        absence = Absence(self._address)
        try:
            return step(self, *args, **parameters)
        except Exception as error:
            if self.evaluating and absence.is_told():
                raise AbsentResultError(str(error)) from error
            raise

    return counted(run)


for _name in [name for name in dir(TaskSetup) if name.startswith("_") and name.endswith("_setup")]:
    setattr(TaskSetup, _name, _noting_absence(getattr(TaskSetup, _name)))
count_calls(PythonController, "desktop_env.")


class Client(desktop_env_module.DesktopEnv):
    """`DesktopEnv` with the two controllers above.

    Args:
        config: for its time-outs and attempts.
        desktop_id: names this desktop in everything that its provider creates.
        options: `DesktopEnv`'s own. A `MachineProvider` goes in as `region`.
    """

    controller: Controller
    setup_controller: TaskSetup
    evaluator: dict[str, Any]
    metric: Any
    result_getter: Any

    def __init__(self, config: EnvironmentConfig, desktop_id: str, **options: Any):
        self._config = config
        self._desktop_id = desktop_id
        self._adapted = False
        super().__init__(**options)

    @property
    def address(self) -> str:
        return f"{self.vm_ip}:{self.server_port}"

    def _set_evaluator_info(self, task_config: dict[str, Any]) -> None:
        if is_bundle(task_config):  # evaluated by its own program, without a getter or a metric of the client's
            self.evaluator, self.metric, self.result_getter = task_config["evaluator"], None, None
            return
        super()._set_evaluator_info(task_config)
        score_absent_results(self)

    def _start_emulator(self) -> None:
        if not self._adapted:
            adapt_provider(self.provider, self._config, self._desktop_id)
            self._adapted = True
        super()._start_emulator()
        _use_no_proxy(self)
        self.controller = Controller(vm_ip=self.vm_ip, server_port=self.server_port)
        self.controller.retry_times = self._config.guest_attempts
        self.controller.retry_interval = self._config.guest_retry_s
        made, self.setup_controller = self.setup_controller, object.__new__(TaskSetup)
        self.setup_controller.__dict__.update(made.__dict__)
        self.setup_controller.boot_timeout_s = self._config.boot_timeout_s
        self.setup_controller.provider = self.provider


_guests: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _use_no_proxy(client: Any) -> None:
    """Add the guest to `NO_PROXY`, since Playwright's driver uses the environment's proxies for all other hosts.

    It removes former guests: a cloud gives each reset another address, and a variable may not reach 128 KiB.
    """
    with _environment_lock:
        former = set(_guests.values())
        _guests[client] = client.vm_ip
        now = set(_guests.values())
        for name in ("NO_PROXY", "no_proxy"):
            before = os.environ.get(name, "")
            kept = [host for host in before.split(",") if host and host not in former - now]
            hosts = ",".join(dict.fromkeys([*kept, *sorted(now)]))
            if hosts != before:
                os.environ[name] = hosts


def _install() -> None:
    """Replace names in the client's modules by ours: its providers' factory, its `requests`, its `print`."""
    make = desktop_env_module.create_vm_manager_and_provider

    def make_or_take(provider_name: str, region: Any, use_proxy: bool = False) -> tuple[Any, Any]:
        if isinstance(region, MachineProvider):
            return None, region  # a manager is asked for VM files alone
        adapt_module(provider_name)
        made: tuple[Any, Any] = make(provider_name, region, use_proxy)
        return made

    desktop_env_module.create_vm_manager_and_provider = make_or_take
    http = GuestHttp()
    note_pages()
    for name, module in list(sys.modules.items()):
        if not name.startswith("desktop_env.") or name.startswith("desktop_env.providers."):
            continue
        if name.startswith("desktop_env.evaluators.getters"):
            count_calls(module, "desktop_env.")
        if getattr(module, "requests", None) is requests:
            vars(module)["requests"] = http
        if hasattr(module, "sync_playwright"):
            vars(module)["sync_playwright"] = noted_playwright
        # Its getters print every reply of the guest.
        if getattr(module, "print", builtins.print) is builtins.print:
            vars(module)["print"] = _debug


def _debug(*values: Any, **_: Any) -> None:
    logger.debug("%s", " ".join(map(str, values)))


_install()
