"""The host's side of the sandboxes' template starts it with the first sandbox."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Sequence

from arpo_verl.desktops.embedded import packages, sandbox
from arpo_verl.desktops.embedded.fork_server import ForkServer
from arpo_verl.errors import MissingDependencyError

_templates: weakref.WeakValueDictionary[tuple[bool, tuple[str, ...]], ForkServer] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def template_for(extra_read_only: Sequence[str]) -> ForkServer:
    """Return this process's template that shows these folders; it ends with its last user.

    Each of its forks is a sandbox's first process, which gets a control channel, one for connections, and a log.

    Raises:
        MissingDependencyError: a program or a Python package is not installed.
    """
    key = sandbox.is_own_user(), tuple(extra_read_only)
    with _lock:
        template = _templates.get(key)
        if template is None or not template.is_alive():
            _require_programs()
            command = functools.partial(sandbox.command, extra_read_only=extra_read_only)
            template = _templates[key] = ForkServer("the desktop's sandbox", command)
        return template


def _require_programs() -> None:
    missing = packages.missing_packages(packages.BASE)
    if missing:
        raise MissingDependencyError(
            f"the embedded desktop needs {', '.join(packages.BASE[name] for name in missing)}; "
            f"run: {packages.install_command(missing)}"
        )


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _templates.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
