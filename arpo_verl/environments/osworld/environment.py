"""A desktop through OSWorld's own client: the embedded one, or any provider that the client knows."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from arpo_verl.actions import typing
from arpo_verl.actions.pyautogui import to_code
from arpo_verl.desktop.machine_provider import MachineProvider
from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EMBEDDED, EnvironmentConfig, read_password
from arpo_verl.environments.osworld.bundle_steps import is_bundle
from arpo_verl.environments.osworld.first_look import BLACK_S, is_black, is_locked, keep_awake
from arpo_verl.environments.osworld.guest_http import clear_exchanges, exchanges, pass_on, told_by_guest
from arpo_verl.environments.osworld.provider_patches import remove_leftovers, why_ended, why_gone
from arpo_verl.environments.osworld.task_files import TaskFiles, default_store
from arpo_verl.environments.osworld.verdict.sandbox import desktop_cause
from arpo_verl.environments.osworld.verdict.sandbox_host import this_process_host
from arpo_verl.environments.osworld.verdict.sandboxed_evaluator import SandboxedEvaluator
from arpo_verl.environments.provider_checks import check_provider, client_options, desktop_index, vm_path
from arpo_verl.environments.providers import PROVIDERS, QEMU
from arpo_verl.errors import (
    ConfigError,
    DesktopBootError,
    DesktopEndedError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    DesktopUnclearError,
    EvaluatorError,
    ImageError,
    MissingDependencyError,
)
from arpo_verl.images import SENT, image_size
from arpo_verl.types import (
    Action,
    Click,
    Drag,
    Evaluation,
    Fail,
    Finish,
    GuestAnswer,
    GuestRequest,
    Observation,
    Size,
    Task,
    TypeText,
    Wait,
)

if TYPE_CHECKING:
    from arpo_verl.environments.osworld.client import Client

logger = logging.getLogger(__name__)

PROBE = "pyautogui.position()"
"""Asks the X server something, through the same interpreter as an action, and changes nothing."""

DOUBLE_CLICK_S = 0.5
"""Seconds within which programs take two clicks for a double click: Tk's and Chromium's time, GTK's and Qt's is 0.4."""


ASK_SHARE = 0.75
"""Of `step_timeout_s`: what is left is for a desktop that took so long to show that it lives."""


class OSWorldEnvironment(DesktopEnvironment):
    """Drives the unmodified `desktop_env.DesktopEnv`, and turns each of its ways to fail into a `DesktopError`.

    The client often logs a failure and returns None or 0. So after each call the log of what it asked of the guest is
    read, and no verdict is taken from a guest that does not answer. Nothing boots before `prepare` or `reset`.

    Args:
        config: which desktop and how patient we are.
        name: distinguishes desktops in messages and folders.
        provider_class: makes what keeps the machine; None is the provider that `config` names.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        name: str = "desktop",
        provider_class: Callable[[EnvironmentConfig, str], MachineProvider] | None = None,
    ):
        self._config = config
        self._name = name
        self._id = uuid.uuid4().hex
        store = default_store() if config.cache_dir is None else Path(config.cache_dir).expanduser()
        self._files = TaskFiles(store, name)
        self._task: Task | None = None
        self._client: Client | None = None
        self._provider_class = provider_class
        self._provider: MachineProvider | None = None
        # Whether the running guest is as it booted. `DesktopEnv` keeps a flag too, but takes a guest whose set-up
        # failed half way, or was only looked at by an evaluator, for a clean one.
        self._clean = False
        self._closed = threading.Event()
        self._may_have_leftovers = False
        self._clicked_at = -math.inf
        self._evaluator = SandboxedEvaluator(config, name)

    def prepare(self) -> None:
        with _named(DesktopBootError, f"{self._name} did not boot"):
            if self._clean and self._alive():
                return
            self._boot()

    def is_ready(self) -> bool:
        return self._clean and self._alive()

    def reset(self, task: Task) -> Observation:
        self.prepare()
        client = self._running()
        self._clean, self._task = False, task
        self._keep_awake(client)  # it may have waited for hours
        clear_exchanges()
        with _named(DesktopSetupError, f"{self._name}: the set-up of task {task.task_id} failed"):
            self._files.begin(task)
            # The client may change the spec in place; the task is the caller's.
            observation = client.reset(task_config=copy.deepcopy(dict(task.spec)))
            self._check_machine(client)
        time.sleep(self._config.setup_pause_s)
        if self._provider is not None:
            self._provider.boot_next()
        settled = self._config.setup_pause_s == 0 and self._config.settle_timeout_s == 0
        return self._check_awake(self._settle(observation["screenshot"] if settled else self._screenshot()))

    def step(self, action: Action) -> Observation:
        if isinstance(action, TypeText):
            typing.check_text(action.text, f"environment.provider={self._config.provider}")
        client = self._running()
        clear_exchanges()
        with self._blamed(), _named(DesktopLostError, f"{self._name} failed at {type(action).__name__}"):
            self._check_machine(client)
            if isinstance(action, Wait):
                # The client rests twice, before and after an action that it has not.
                observation = client.step("WAIT", pause=self._config.wait_s / 2)[0]
            elif isinstance(action, (Finish, Fail)):
                return self._seen(client.step("FAIL" if isinstance(action, Fail) else "DONE", pause=0)[0]["screenshot"])
            else:
                if isinstance(action, (Click, Drag)):
                    self._keep_clicks_apart()
                *first, last = self._codes(action)
                for code in first:
                    self._check_result(action, client.controller.execute_python_command(code))
                client.controller.last_result = None
                observation = client.step(last, pause=self._config.action_pause_s)[0]
                self._check_result(action, client.controller.last_result)
                if isinstance(action, Click):
                    self._clicked_at = time.monotonic() - self._config.action_pause_s
            return self._settle(observation["screenshot"])

    def look(self) -> Observation:
        client = self._running()
        clear_exchanges()
        with self._blamed(), _named(DesktopLostError, f"{self._name} could not be looked at"):
            self._check_machine(client)
            return self._seen(client.controller.get_screenshot())

    def ask(self, request: GuestRequest) -> GuestAnswer:
        client = self._running()
        clear_exchanges()
        with self._blamed(), _named(DesktopLostError, f"{self._name} did not answer {request.path}"):
            self._check_machine(client)
            try:
                # How long it takes is the program's own choice, and no fault of a desktop that lives.
                return pass_on(client.controller.http_server, request, self._config.step_timeout_s * ASK_SHARE)
            except requests.Timeout:
                if not self._answers_for_its_screen():
                    raise
                return GuestAnswer(HTTPStatus.GATEWAY_TIMEOUT, "text/plain", b"it took too long")

    def _keep_clicks_apart(self) -> None:
        """Two clicks are no double click, however soon the policy asks for the second; nor are a click and a drag."""
        time.sleep(max(0.0, self._clicked_at + DOUBLE_CLICK_S - time.monotonic()))

    def evaluate(self) -> Evaluation:
        client = self._running()
        if self._task is None:
            raise EvaluatorError("a task must be set up before it is evaluated; call reset(task) first")
        failed = f"{self._name}: the evaluator of task {self._task.task_id} failed"
        with self._blamed(), _named(EvaluatorError, failed):
            if not self._alive():  # else the client would wait for it as for one that boots
                raise DesktopLostError(f"{self._name} was gone before its task was evaluated")
            time.sleep(self._config.evaluate_pause_s)
            if is_bundle(self._task.spec):
                from arpo_verl.environments.osworld.bundles import evaluate_bundle

                verdict = evaluate_bundle(client, self._name, self._config)
            else:
                verdict = self._evaluator(client, self._task)
            self._check_machine(client)
            return verdict

    def close(self) -> None:
        """Also from another thread, while a call hangs: the guest's death ends the call."""
        self._closed.set()
        client, provider = self._client, self._provider
        try:
            self._evaluator.close()
            if client is not None:
                client.close()
            elif provider is not None:
                provider.stop()
        finally:
            self._files.remove()
            if self._may_have_leftovers:
                remove_leftovers(self._config, self._id)

    # --- Boot --------------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        """A clean guest, answering, with the screen that the recipe says."""
        self._clean = False
        if self._client is None:
            self._client = self._make_client()
        else:
            self._client.is_environment_used = True
        client = self._client
        if client.is_environment_used:  # by us, or since the provider starts from whatever was there
            client.reset()
        if self._closed.is_set():
            client.close()
            raise DesktopBootError(f"{self._name} was closed while it booted")
        self._check_screen(client.controller.get_screenshot())
        self._keep_awake(client)
        self._clean = True

    def _make_client(self) -> Client:
        config = self._config
        options: dict[str, Any] = {
            "os_type": config.os_type,
            "headless": config.headless,
            "enable_proxy": config.proxy,
            "client_password": read_password(config.password),
            "cache_dir": str(self._files.folder),
            "screen_size": tuple(config.screen_size),
            "require_a11y_tree": False,
        }
        index = desktop_index(self._name)
        if config.provider in PROVIDERS:
            check_provider(config, index)  # before the client is imported: it looks at variables as it is
        self._provider = self._make_provider(index)
        if self._provider is not None:
            # "docker" is the client's word for a provider whose guests start clean.
            options |= {"provider_name": "docker", "region": self._provider, "path_to_vm": "local"}
        else:
            options |= client_options(config, index)
        sandbox_host = this_process_host()  # it imports the client too, meanwhile
        from arpo_verl.environments.osworld.client import Client

        sandbox_host.await_ready()
        self._may_have_leftovers = True
        return Client(config, self._id, **options)

    def _make_provider(self, index: int) -> MachineProvider | None:
        """What keeps the machine; None leaves it to the client, which has a provider of the recipe's name."""
        config = self._config
        if self._provider_class is not None:
            return self._provider_class(config, self._name)
        if config.provider == QEMU:
            from arpo_verl.vm.provider import QemuProvider

            path, password = str(vm_path(config, index)), read_password(config.password)
            return QemuProvider(config.vm, path, config.screen_size, config.boot_timeout_s, password)
        if config.provider != EMBEDDED:
            return None
        from arpo_verl.desktop.provider import EmbeddedProvider

        try:
            return EmbeddedProvider(self._config.screen_size, **self._config.provider_options)
        except TypeError as error:
            raise ConfigError(f"environment.provider_options must be EmbeddedProvider's own: {error}") from error

    def _check_screen(self, screenshot: bytes | None) -> None:
        if screenshot is None:
            raise DesktopBootError(f"{self._name} booted but shows no screen")
        try:
            size = image_size(screenshot, SENT)
        except ImageError as error:
            raise DesktopBootError(f"{self._name} sent a screenshot that is no image: {error}") from error
        if size != self._config.screen_size:
            raise DesktopBootError(
                f"environment.screen_size must be what the desktop shows, {list(size)}, got "
                f"{list(self._config.screen_size)}: every click would miss"
            )

    @property
    def _may_lock(self) -> bool:
        """Whether its session is one that locks an idle screen. The embedded desktop's has no such program."""
        return self._config.os_type == "Ubuntu" and self._config.provider != EMBEDDED

    def _keep_awake(self, client: Client) -> None:
        if self._may_lock:
            with _named(DesktopBootError, f"{self._name} could not be kept awake"):
                if keep_awake(client.setup_controller.http_server):
                    raise DesktopBootError(f"{self._name} locked or blanked its screen, and does not unlock it")

    def _check_awake(self, first: Observation) -> Observation:
        """The first look that is not black.

        Raises:
            DesktopSetupError: there is none, or the screen is locked.
        """
        deadline = time.monotonic() + BLACK_S
        with _named(DesktopSetupError, f"{self._name} could not be looked at after its set-up"):
            while is_black(first.screenshot):
                if time.monotonic() > deadline:
                    raise DesktopSetupError(f"{self._name} showed a black screen for {BLACK_S:g} s after its set-up")
                time.sleep(self._config.settle_interval_s)
                first = self._seen(self._running().controller.get_screenshot())
            if self._may_lock and is_locked(self._running().setup_controller.http_server):
                raise DesktopSetupError(f"{self._name} locked or blanked its screen during its set-up")
        return first

    # --- What the client does not say --------------------------------------------------------------------------

    def _running(self) -> Client:
        if self._client is None or self._closed.is_set():
            raise DesktopLostError(f"{self._name} is not running; call reset(task) first, and nothing after close()")
        return self._client

    def _alive(self) -> bool:
        client = self._client
        if client is None or why_gone(client.provider, self._config):
            return False
        return client.controller.get_screenshot() is not None

    def _check_machine(self, client: Client) -> None:
        """What answers at a dead machine's address is another desktop."""
        reason = why_gone(client.provider, self._config)
        if reason:
            raise DesktopLostError(f"{self._name} is gone: {reason}")

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Separate what the policy did to its desktop, as far as that is proved, from faults and unclear ones.

        Not in a set-up: nothing of the policy's has run there yet.
        """
        try:
            yield
        except DesktopError as error:
            client = self._client
            if client is None or self._closed.is_set():
                raise
            proof = why_ended(client.provider, self._config)
            if proof:
                raise DesktopEndedError(f"{self._name} was ended by its own programs: {proof}") from error
            if type(error) is DesktopLostError and not why_gone(client.provider, self._config):
                raise DesktopUnclearError(str(error)) from error
            raise

    def _codes(self, action: Action) -> list[str]:
        """What the guest runs for an action, one after the other; a long text is typed in parts."""
        if self._config.provider == EMBEDDED and self._provider_class is None:
            type_text = typing.by_taught_pyautogui
        else:
            type_text = typing.by_windows_keys if self._config.os_type == "Windows" else typing.by_x_keys
        if isinstance(action, TypeText):
            return [to_code(TypeText(part), type_text=type_text) for part in typing.parts(action.text)]
        return [to_code(action)]

    def _check_result(self, action: Action, result: Any) -> None:
        """Distinguish an action that cannot be done, which the official runners pass over, from a guest in trouble."""
        kind = type(action).__name__
        if result is None:
            if any(told_by_guest(one) for one in exchanges()):
                logger.info("%s cannot do %s: %s", self._name, kind, exchanges()[0].body)
                return
            raise DesktopLostError(f"{self._name} did not answer {kind}")
        status = result.get("returncode") if isinstance(result, dict) else None
        if status == 0:
            return
        error = str((isinstance(result, dict) and (result.get("error") or result.get("output"))) or result)[-500:]
        # An exception ends a Python that lives with 1. A killed one has perhaps done half of it, and so has one
        # that types: it raises only where keys that it was sure of fail.
        if status == 1 and not isinstance(action, TypeText) and self._answers_for_its_screen():
            logger.info("%s could not do %s, and lives: %s", self._name, kind, error)
            return
        raise DesktopLostError(f"{self._name} could not do {kind}: {error}")

    def _answers_for_its_screen(self) -> bool:
        probed = self._running().controller.execute_python_command(PROBE)
        return isinstance(probed, dict) and probed.get("returncode") == 0

    # --- Looking -----------------------------------------------------------------------------------------------

    def _screenshot(self) -> bytes:
        return self._seen(self._running().controller.get_screenshot()).screenshot

    def _seen(self, screenshot: bytes | None) -> Observation:
        if screenshot is None:
            raise DesktopLostError(f"{self._name} gave no screenshot")
        try:
            size = image_size(screenshot, SENT)
        except ImageError as error:
            raise DesktopLostError(f"{self._name} sent a screenshot that is no image: {error}") from error
        if size != self._config.screen_size:
            self._check_resized(size)
        return Observation(screenshot)

    def _check_resized(self, size: Size) -> None:
        """A policy may set another resolution; a screenshot of a size that the screen does not have is a fault."""
        told = self._running().controller.get_vm_screen_size()
        if not isinstance(told, dict) or (told.get("width"), told.get("height")) != tuple(size):
            raise DesktopLostError(f"{self._name} sent a screenshot of {list(size)}, but says its screen has {told}")
        if size.width * size.height > self._config.screen_size.width * self._config.screen_size.height:
            # Memory was estimated for the recipe's screen.
            raise DesktopLostError(f"{self._name} was set to {list(size)}, larger than environment.screen_size")

    def _settle(self, screenshot: bytes | None) -> Observation:
        """Look until two looks in a row are alike, or `settle_timeout_s` is over."""
        seen = self._seen(screenshot)
        deadline = time.monotonic() + self._config.settle_timeout_s
        while time.monotonic() < deadline:
            time.sleep(self._config.settle_interval_s)
            last, seen = seen, self._seen(self._running().controller.get_screenshot())
            if last.screenshot == seen.screenshot:
                break
        return seen


@contextlib.contextmanager
def _named(error_class: type[DesktopError], what: str) -> Iterator[None]:
    """Whatever the client raises leaves as the boundary's error; a `DesktopError` says what it is already.

    What is not installed here, or is configured wrongly, will not boot on a fresh desktop either: it stays what it is.
    """
    try:
        yield
    except (DesktopError, DesktopEndedError):
        raise
    except Exception as error:
        if error_class is DesktopBootError and isinstance(error, (ConfigError, MissingDependencyError)):
            raise
        inner = desktop_cause(error)
        if inner is not None:
            raise inner from error
        raise error_class(f"{what}: {type(error).__name__}: {error}") from error
