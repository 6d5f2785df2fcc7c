"""Start a Ray of one's own, also on a machine that is slow or busy.

Ray gives its node 30 s to start (2.60: `_private/node.py: Node.__init__`), and starts five Python programs in them. A
run without a dashboard needs only two of these, the log monitor and the agent of runtime environments. So we leave out
the others, let Ray wait longer, and try again if it still comes too late.

The file also runs as a script, with only the standard library, in the place of two of Ray's. One is the dashboard's
agent. The other is `setup_worker.py`, which imports all of Ray, only to set variables and then become the worker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import select
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

RAY_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
STARTS = 3
PATIENCE = {
    # By default 30 s each. The driver waits for its node (in one look of `Node.__init__`), Ray for its processes.
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_gcs_server_port_wait_time_s": "60",
    "RAY_agent_register_timeout_ms": "60000",
}
"""Environment variables that make Ray wait longer at its start."""
_LEAN_VARIABLES = {
    # Two workers that no task of ours can use: they would have no runtime environment.
    "RAY_prestart_worker_first_driver": "0",
    # By default 15: beside other programs that work, those that train would get a thirtieth of what each of these gets.
    "RAY_worker_niceness": "0",
}
_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_AGENT, _SETUP = "dashboard/agent.py", "_private/workers/setup_worker.py"
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


def start_ray(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Start Ray by `ray.init`, again if Ray was too slow, and return what it returns.

    Args:
        init: `ray.init`, for a Ray of this process's own.
        args, options: its arguments. Only with `include_dashboard=False` we leave out what serves the dashboard.
    """
    import psutil
    import ray

    if args or ray.is_initialized():  # somebody's second call, which must not end this Ray
        return init(*args, **options)
    is_lean = options.get("include_dashboard") is False
    for name, value in {**PATIENCE, **(_LEAN_VARIABLES if is_lean else {})}.items():
        os.environ.setdefault(name, value)
    me = psutil.Process()
    for start in range(1, STARTS + 1):
        earlier = me.children(recursive=True)
        try:
            # The last start is Ray's own: perhaps another version does not take what we leave out.
            with _lean_start() if is_lean and start < STARTS else contextlib.nullcontext():
                return init(**options)
        except (ValueError, TypeError, PermissionError):  # the options or /tmp/ray are wrong, and remain so
            raise
        except Exception as error:
            ray.shutdown()
            left = [process for process in me.children(recursive=True) if process not in earlier]
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left)
            why = f"Ray did not start ({str(error).partition('. ')[0]}): {describe_load()}"
            if start == STARTS:
                raise RuntimeError(f"{why}. End other programs, then run the same command again.") from error
            print(f"{why}, so it starts again (try {start + 1} of {STARTS})", flush=True)


def settle_ray_token(joins: bool) -> None:
    """Keep a run from changing how this user's other Ray clusters start.

    When a driver starts Ray 2.60 or newer, Ray saves a token in the home. Every later `ray start` finds it and asks for
    tokens (`ray/_private/authentication/authentication_token_setup.py`), which a driver that names the cluster's
    address does not send by default. So a run's own Ray gets its token through the environment instead.

    Args:
        joins: whether the run joins a running Ray.
    """
    if any(name in os.environ for name in RAY_AUTH):
        return
    saved = Path.home() / ".ray" / "auth_token"
    if not joins and not saved.exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    elif joins and saved.exists():
        logger.warning("found %s: if the cluster refuses this run, set RAY_AUTH_MODE=token", saved)


def describe_load() -> str:
    """Describe how busy this machine is."""
    load, count = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"this machine is slow or busy, with {load:.0f} processes that want its {count} processors"


@contextlib.contextmanager
def _lean_start() -> Iterator[None]:
    """Make Ray start neither its autoscaler nor what serves the dashboard."""
    from subprocess import list2cmdline
    from unittest import mock

    import ray
    from ray._private import node, services

    stock = services.start_ray_process
    # An older raylet wants a real agent.
    names = (_AGENT, _SETUP) if hasattr(ray._raylet, "persist_port") else (_SETUP,)
    scripts = [os.path.join(services.RAY_PATH, name) for name in names]

    def start(command: list[str], *args: Any, **kwargs: Any) -> Any:
        for script in scripts:  # the raylet's options have the command lines of what it starts
            theirs, ours = map(list2cmdline, ([script], ["-I", "-S", __file__, script]))
            command = [word.replace(theirs, ours) if word.startswith("--") else word for word in command]
        return stock(command, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in ("start_monitor", "start_api_server"):
            stack.enter_context(mock.patch.object(node.Node, name, lambda *_, **__: None, create=True))
        stack.enter_context(mock.patch.object(services, "start_ray_process", start))
        yield


def _stand_for_agent(words: list[str]) -> None:
    """Report to the raylet that nobody serves the dashboard, as Ray without its extra `default` does; end with it."""
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    for name in _PORTS:
        path = Path(options["session-dir"], f"{name}_{options['node-id']}")
        path.with_suffix(".new").write_text("-1")
        path.with_suffix(".new").rename(path)
    raylet = select.poll()
    raylet.register(os.pidfd_open(int(os.environ["RAY_RAYLET_PID"])), select.POLLIN)
    raylet.poll()


def _become_worker(setup: str, words: list[str]) -> None:
    """Set a worker's variables and become the worker. Ray's own script does what we do not know, as for a container."""
    context: dict[str, Any] = {}
    passed: list[str] = []
    for word in words:
        if word.startswith(_CONTEXT):
            context = json.loads(word.removeprefix(_CONTEXT))
        elif not word.startswith(_LANGUAGE):
            passed.append(word)
    known = {name: context.pop(name, None) for name in ("env_vars", "py_executable")}
    python = (known["py_executable"] or sys.executable).split()
    needs_shell = any(shlex.quote(word) != word for word in python)  # Ray gives it to bash
    if any(context.values()) or needs_shell or f"{_LANGUAGE}PYTHON" not in words:
        os.execv(sys.executable, [sys.executable, setup, *words])  # noqa: S606
    for name, value in (known["env_vars"] or {}).items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    os.execvp(python[0], [*python, *passed])  # noqa: S606


if __name__ == "__main__":
    if sys.argv[1].endswith(_AGENT):
        _stand_for_agent(sys.argv[2:])
    else:
        _become_worker(sys.argv[1], sys.argv[2:])
