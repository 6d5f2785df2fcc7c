"""A desktop that works through OSWorld's own client: the embedded desktop, or any provider that the client knows."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import pkgutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from arpo_verl.agent.actions import typing
from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EMBEDDED, EnvironmentConfig, read_password
from arpo_verl.desktops.machine_provider import MachineProvider
from arpo_verl.desktops.osworld.bundles import evaluate_bundle
from arpo_verl.desktops.osworld.calls import log
from arpo_verl.desktops.osworld.first_look import BLACK_S, is_black, is_locked, keep_awake
from arpo_verl.desktops.osworld.guest_http import pass_on, told_by_guest
from arpo_verl.desktops.osworld.provider_patches import remove_leftovers, why_ended, why_gone
from arpo_verl.desktops.osworld.task_files import TaskFiles, default_store
from arpo_verl.desktops.osworld.verdict.sandbox import desktop_cause
from arpo_verl.desktops.osworld.verdict.sandbox_host import this_process_host
from arpo_verl.desktops.osworld.verdict.sandboxed_evaluator import SandboxedEvaluator
from arpo_verl.desktops.provider_checks import check_provider, client_options, desktop_index
from arpo_verl.desktops.providers import OUR_MACHINES, PROVIDERS
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
from arpo_verl.lib.images import SENT, image_size
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
    is_bundle,
)

if TYPE_CHECKING:
    from arpo_verl.desktops.osworld.client import Client

logger = logging.getLogger(__name__)

PROBE = "pyautogui.position()"
"""Code that asks the X server something, through the same interpreter as an action, and changes nothing."""

DOUBLE_CLICK_S = 0.5
"""Two clicks within these seconds are a double click for Tk and Chromium; for GTK and Qt it is 0.4 s."""


ASK_SHARE = 0.75
"""Share of `step_timeout_s` for a harness's request; in the rest a slow desktop can show that it is alive."""


class OSWorldEnvironment(DesktopEnvironment):
    """Drives the unmodified `desktop_env.DesktopEnv`, and turns each of its failures into a `DesktopError`.

    The client often logs a failure and returns None or 0. So after each call we read the log of its requests to the
    guest, and we take no verdict from a guest that does not answer. Nothing boots before `prepare` or `reset`.

    Args:
        config: which desktop, and its time-outs.
        name: distinguishes desktops in messages and folders.
        provider_class: makes the provider of the machine; None takes the one that `config` names.
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
        # Whether the running guest is as it booted. `DesktopEnv` has such a flag too, but it wrongly counts as clean a
        # guest whose set-up failed half way, or that only an evaluator used.
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
        log.clear()
        with _named(DesktopSetupError, f"{self._name}: the set-up of task {task.task_id} failed"):
            self._files.begin(task)
            # The client may change the spec in place; the task is the caller's.
            observation = client.reset(task_config=copy.deepcopy(dict(task.spec)))
            self._check_machine(client)
        time.sleep(self._config.setup_pause_s)
        if self._provider is not None:
            self._provider.boot_next()
        settled = self._config.setup_pause_s == 0 and self._config.settle_timeout_s == 0
        first = self._seen(observation["screenshot"]) if settled else self._look()
        return self._check_awake(self._settle(first))

    def step(self, action: Action) -> Observation:
        if isinstance(action, TypeText):
            typing.check_text(action.text, f"environment.provider={self._config.provider}")
        client = self._running()
        log.clear()
        with self._blamed(), _named(DesktopLostError, f"{self._name} failed at {type(action).__name__}"):
            self._check_machine(client)
            if isinstance(action, Wait):
                # The client pauses twice, before and after WAIT.
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
            return self._settle(self._seen(observation["screenshot"]))

    def look(self) -> Observation:
        client = self._running()
        log.clear()
        with self._blamed(), _named(DesktopLostError, f"{self._name} could not be looked at"):
            self._check_machine(client)
            return self._look()

    def ask(self, request: GuestRequest) -> GuestAnswer:
        client = self._running()
        log.clear()
        with self._blamed(), _named(DesktopLostError, f"{self._name} did not answer {request.path}"):
            self._check_machine(client)
            try:
                # The program may choose a slow request; that is no fault of a desktop that is alive.
                return pass_on(client.controller.http_server, request, self._config.step_timeout_s * ASK_SHARE)
            except requests.Timeout:
                if not self._answers_for_its_screen():
                    raise
                return GuestAnswer(HTTPStatus.GATEWAY_TIMEOUT, "text/plain", b"it took too long")

    def _keep_clicks_apart(self) -> None:
        """Wait, so that two quick clicks of the policy, or a click and a drag, do not become a double click."""
        time.sleep(max(0.0, self._clicked_at + DOUBLE_CLICK_S - time.monotonic()))

    def evaluate(self) -> Evaluation:
        client = self._running()
        if self._task is None:
            raise EvaluatorError("a task must be set up before it is evaluated; call reset(task) first")
        failed = f"{self._name}: the evaluator of task {self._task.task_id} failed"
        with self._blamed(), _named(EvaluatorError, failed):
            if not self._alive():  # otherwise the client would wait for it as if it were booting
                raise DesktopLostError(f"{self._name} was gone before its task was evaluated")
            time.sleep(self._config.evaluate_pause_s)
            if is_bundle(self._task.spec):
                verdict = evaluate_bundle(client, self._name, self._config)
            else:
                verdict = self._evaluator(client, self._task)
            self._check_machine(client)
            return verdict

    def close(self) -> None:
        """Close it; another thread may do that while a call hangs, since the guest's death ends the call."""
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
        """Start a clean guest, and check that it answers and has the recipe's screen."""
        self._clean = False
        provider = PROVIDERS.get(self._config.provider)
        # For the client a cloud's machine starts clean, but one that the recipe names is as its last episode left it.
        is_named = self._config.path_to_vm is not None and provider is not None and not provider.shares_vm
        is_used = self._client is not None or is_named
        client = self._client = self._client or self._make_client()
        if is_used or client.is_environment_used:
            client.is_environment_used = True
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
            check_provider(config, index)  # first, since the client reads environment variables at import
        self._provider = self._make_provider()
        if self._provider is not None:
            # For the client "docker" means a provider whose guests start clean.
            options |= {"provider_name": "docker", "region": self._provider, "path_to_vm": "local"}
        else:
            options |= client_options(config, index)
        sandbox_host = this_process_host()  # it imports the client at the same time
        from arpo_verl.desktops.osworld.client import Client

        sandbox_host.await_ready()
        self._may_have_leftovers = True
        return Client(config, self._id, **options)

    def _make_provider(self) -> MachineProvider | None:
        """Make our own provider of the machine; None if the client has one of the recipe's name."""
        config, make = self._config, self._provider_class
        if make is None and config.provider in OUR_MACHINES:
            make = pkgutil.resolve_name(OUR_MACHINES[config.provider])
        return None if make is None else make(config, self._name)

    def _check_screen(self, screenshot: bytes | None) -> None:
        if screenshot is None:
            raise DesktopBootError(f"{self._name} booted but shows no screen")
        size = self._size_of(screenshot, DesktopBootError)
        if size != self._config.screen_size:
            raise DesktopBootError(
                f"environment.screen_size must be what the desktop shows, {list(size)}, got "
                f"{list(self._config.screen_size)}: every click would miss"
            )

    @property
    def _may_lock(self) -> bool:
        """Return whether its session may lock an idle screen; the embedded desktop has no such program."""
        return self._config.os_type == "Ubuntu" and self._config.provider != EMBEDDED

    def _keep_awake(self, client: Client) -> None:
        if self._may_lock:
            with _named(DesktopBootError, f"{self._name} could not be kept awake"):
                if keep_awake(client.setup_controller.http_server):
                    raise DesktopBootError(f"{self._name} locked or blanked its screen, and does not unlock it")

    def _check_awake(self, first: Observation) -> Observation:
        """Look until the screen is not black, and return that observation.

        Raises:
            DesktopSetupError: it stays black, or the screen is locked.
        """
        deadline = time.monotonic() + BLACK_S
        with _named(DesktopSetupError, f"{self._name} could not be looked at after its set-up"):
            while is_black(first.screenshot):
                if time.monotonic() > deadline:
                    raise DesktopSetupError(f"{self._name} showed a black screen for {BLACK_S:g} s after its set-up")
                time.sleep(self._config.settle_interval_s)
                first = self._look()
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
        if client is None or why_gone(client.provider):
            return False
        log.clear()  # a desktop that waits for hours is asked so often that all answers together are too large
        return client.controller.get_screenshot() is not None

    def _check_machine(self, client: Client) -> None:
        """Check that the machine is alive: another desktop may answer at a dead machine's address."""
        if reason := why_gone(client.provider):
            raise DesktopLostError(f"{self._name} is gone: {reason}")

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Raise a `DesktopEndedError` if the policy provably ended its desktop, and separate clear from unclear faults.

        Do not use it in a set-up: nothing of the policy's has run by then.
        """
        try:
            yield
        except DesktopError as error:
            client = self._client
            if client is None or self._closed.is_set():
                raise
            if proof := why_ended(client.provider):
                raise DesktopEndedError(f"{self._name} was ended by its own programs: {proof}") from error
            if type(error) is DesktopLostError and not why_gone(client.provider):
                raise DesktopUnclearError(str(error)) from error
            raise

    def _codes(self, action: Action) -> list[str]:
        """Return the code that the guest runs for an action, one after the other; a long text is typed in parts."""
        if self._config.provider == EMBEDDED and self._provider_class is None:
            type_text = typing.by_taught_pyautogui
        else:
            type_text = typing.by_windows_keys if self._config.os_type == "Windows" else typing.by_x_keys
        if isinstance(action, TypeText):
            return [to_code(TypeText(part), type_text=type_text) for part in typing.parts(action.text)]
        return [to_code(action)]

    def _check_result(self, action: Action, result: Any) -> None:
        """Pass over an action that cannot be done, as the official runners do; raise if the guest is in trouble."""
        kind = type(action).__name__
        if result is None:
            if any(told_by_guest(one) for one in log.exchanges):
                logger.info("%s cannot do %s: %s", self._name, kind, log.exchanges[0].body)
                return
            raise DesktopLostError(f"{self._name} did not answer {kind}")
        status = result.get("returncode") if isinstance(result, dict) else None
        if status == 0:
            return
        error = str((isinstance(result, dict) and (result.get("error") or result.get("output"))) or result)[-500:]
        # After an exception Python exits with 1. A killed Python has perhaps done half of the action. So has one that
        # types: it raises only if keys fail that it was sure of.
        if status == 1 and not isinstance(action, TypeText) and self._answers_for_its_screen():
            logger.info("%s could not do %s, and lives: %s", self._name, kind, error)
            return
        raise DesktopLostError(f"{self._name} could not do {kind}: {error}")

    def _answers_for_its_screen(self) -> bool:
        probed = self._running().controller.execute_python_command(PROBE)
        return isinstance(probed, dict) and probed.get("returncode") == 0

    # --- Looking -----------------------------------------------------------------------------------------------

    def _look(self) -> Observation:
        return self._seen(self._running().controller.get_screenshot())

    def _seen(self, screenshot: bytes | None) -> Observation:
        if screenshot is None:
            raise DesktopLostError(f"{self._name} gave no screenshot")
        size = self._size_of(screenshot, DesktopLostError)
        if size != self._config.screen_size:
            self._check_resized(size)
        return Observation(screenshot)

    def _size_of(self, screenshot: bytes, error_class: type[DesktopError]) -> Size:
        try:
            size = image_size(screenshot, SENT)
        except ImageError as error:
            raise error_class(f"{self._name} sent a screenshot that is no image: {error}") from error
        if len(screenshot) > 5 * size.width * size.height:  # uncompressed it has 4 a pixel, and the run keeps all of it
            raise error_class(f"{self._name} sent {len(screenshot)} bytes for a screenshot of {list(size)}")
        return size

    def _check_resized(self, size: Size) -> None:
        """Check a screenshot's new size: a policy may set another resolution, but the screen must really have it."""
        told = self._running().controller.get_vm_screen_size()
        if not isinstance(told, dict) or (told.get("width"), told.get("height")) != tuple(size):
            raise DesktopLostError(f"{self._name} sent a screenshot of {list(size)}, but says its screen has {told}")
        if size.width * size.height > self._config.screen_size.width * self._config.screen_size.height:
            # Memory was estimated for the recipe's screen.
            raise DesktopLostError(f"{self._name} was set to {list(size)}, larger than environment.screen_size")

    def _settle(self, seen: Observation) -> Observation:
        """Look until two looks in a row are alike, or `settle_timeout_s` is over."""
        deadline = time.monotonic() + self._config.settle_timeout_s
        while time.monotonic() < deadline:
            time.sleep(self._config.settle_interval_s)
            last, seen = seen, self._look()
            if last.screenshot == seen.screenshot:
                break
        return seen


@contextlib.contextmanager
def _named(error_class: type[DesktopError], what: str) -> Iterator[None]:
    """Turn any exception of the client's into `error_class`; a `DesktopError` stays as it is.

    At a boot, missing packages and wrong options stay as they are too: a fresh desktop would not boot either.
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
