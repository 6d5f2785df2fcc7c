"""Shared memory of vLLM's engines that Ray leaves behind: removed when its maker is gone.

vLLM's engine and its workers talk through segments of 65 MB (`ShmRingBuffer` in
`vllm/distributed/device_communicators/shm_broadcast.py` of 0.24), which their maker removes when it ends in order. When
a job ends, Ray kills them, and with them Python's own resource tracker, a child of theirs: two segments stayed in
/dev/shm at each launch. So each maker informs a process that is nobody's child what it made; that one waits for the
maker's end, and removes what is still there.

vLLM's workers end with EngineCore, but EngineCore does not end with a server that is killed: it would keep its GPUs'
memory, and the segments. So each process of an engine waits for the end of the one that started it.

`register` is the entry point `vllm.general_plugins`, which vLLM calls in each of its processes: not in all of them is
veRL imported. The file runs as a script too, with the standard library alone: that is the process that removes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arpo_verl.upstream_patches import Patch

logger = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")
_START_S = 30.0
_tell: dict[int, IO[bytes]] = {}
"""By process, a fork's own included: the pipe to the one that removes."""


def register() -> None:
    """What vLLM calls in each of its processes."""
    from tqdm import tqdm

    # Else a process's first progress bar makes a semaphore in /dev/shm, which would stay too. No bar is shared.
    tqdm.set_lock(threading.RLock())
    end_with_parent()
    patch()


def patch() -> None:
    """Have vLLM's ring buffers report the segments that they make, once their module is imported; and put our cache of
    processed images in the place of vLLM's (`vllm_images.py`).

    A vLLM that is too old for our recipes is left alone: it is another trainer's, as EasyR1's.
    """
    from arpo_verl.post_import import when_imported
    from arpo_verl.upstream_patches import IMAGE_CACHES, SEGMENTS

    for upstream, replace in ((SEGMENTS, reporting), (IMAGE_CACHES, _image_cache)):
        when_imported(upstream.module, functools.partial(_apply, upstream, replace))


def _apply(upstream: Patch, replace: Callable[[str, Any], Any], module: ModuleType) -> None:
    from arpo_verl.versions import OLDEST, installed_version, is_older

    installed = installed_version("vllm")
    if installed is None or not is_older(installed, OLDEST["vllm"]):
        upstream.apply(module, replace)


def end_with_parent() -> None:
    """Have this process killed when the one that started it has ended; nothing where `multiprocessing` started none."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_kill_after, args=(parent,), name="parent", daemon=True).start()


def _kill_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _image_cache(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    from arpo_verl.vllm_images import replacing

    return replacing(name, upstream)


def reporting(name: str, upstream: Callable[..., None]) -> Callable[..., None]:
    """Return what takes the place of `ShmRingBuffer.__init__`, as `Patch.apply` asks for it."""

    @functools.wraps(upstream)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        upstream(self, *args, **kwargs)
        if self.is_creator:
            try:
                remove_after_this_process(self.shared_memory.name)
            except (OSError, subprocess.TimeoutExpired):  # no reason not to generate
                _tell.pop(os.getpid(), None)
                logger.warning("%s/%s stays if this process is killed", FOLDER, self.shared_memory.name, exc_info=True)

    return make


def remove_after_this_process(name: str) -> None:
    """Have the segment `name`, which this process made, removed once it has ended, in whichever way."""
    pipe = _tell.get(os.getpid())
    if pipe is None:
        command = [sys.executable, "-I", __file__]
        remover = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")
        remover.wait(_START_S)
        assert remover.stdin is not None
        pipe = _tell[os.getpid()] = remover.stdin
    pipe.write(f"{name} {os.stat(FOLDER / name).st_ino}\n".encode())
    pipe.flush()


def _wait_and_remove() -> None:
    """The other process: standard input has a line a segment, and ends with the maker."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the maker
        signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin.buffer.read().decode().splitlines():
        name, inode = line.split()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(FOLDER / name).st_ino == int(inode):  # not another's, who got the same name since
                os.unlink(FOLDER / name)


if __name__ == "__main__":
    _wait_and_remove()
