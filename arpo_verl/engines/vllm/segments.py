"""Remove shared memory of vLLM's engines, which Ray leaves behind when it kills them.

vLLM's engine and its workers communicate through segments of 65 MB (`ShmRingBuffer` in
`vllm/distributed/device_communicators/shm_broadcast.py` of 0.24). Their maker removes them when it ends normally. But
at the end of a job Ray kills the makers, and with them Python's resource tracker, their child: each launch left two
segments in /dev/shm. So `lib/reaper.py`, whose process is nobody's child, removes what is left after the maker's end.

vLLM's workers end with EngineCore, but EngineCore does not end with a killed server: it would keep its GPUs' memory,
and the segments. So each process of an engine waits for the end of the process that started it.

`register` is the entry point `vllm.general_plugins`, which vLLM calls in each of its processes; not all of them import
veRL. In somebody's own `vllm serve` it does nothing.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arpo_verl.lib import reaper

if TYPE_CHECKING:
    from arpo_verl.engines.upstream_patches import Patch

logger = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")


def register() -> None:
    """Set up a process of vLLM, if it belongs to a run of ours. vLLM calls this in each of them."""
    from arpo_verl.lib.run_marker import is_our_run

    if not is_our_run():
        return
    from tqdm import tqdm

    # Otherwise a process's first progress bar makes a semaphore in /dev/shm, which would stay too. No bar is shared.
    tqdm.set_lock(threading.RLock())
    end_with_parent()
    patch()


def patch() -> None:
    """Make vLLM's ring buffers report their segments once their module is imported, and replace vLLM's cache of
    processed images by ours (`engines/vllm/images.py`), where this version needs it.

    A vLLM that is too old for our recipes is left alone: it belongs to another trainer, such as EasyR1.
    """
    from arpo_verl.engines.upstream_patches import IMAGE_CACHES, SEGMENTS
    from arpo_verl.lib.post_import import when_imported

    for upstream, replace in ((SEGMENTS, reporting), (IMAGE_CACHES, _image_cache)):
        when_imported(upstream.module, functools.partial(_apply, upstream, replace))


def _apply(upstream: Patch, replace: Callable[[str, Any], Any], module: ModuleType) -> None:
    from arpo_verl.versions import OLDEST, installed_version, is_older

    installed = installed_version("vllm")
    if upstream.is_needed() and (installed is None or not is_older(installed, OLDEST["vllm"])):
        upstream.apply(module, replace)


def end_with_parent() -> None:
    """Kill this process when the one that started it ends; do nothing if `multiprocessing` did not start it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_kill_after, args=(parent,), name="parent", daemon=True).start()


def _kill_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _image_cache(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    from arpo_verl.engines.vllm.images import replacing

    return replacing(name, upstream)


def reporting(name: str, upstream: Callable[..., None]) -> Callable[..., None]:
    """Return our version of `ShmRingBuffer.__init__`, for `Patch.apply`."""

    @functools.wraps(upstream)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        upstream(self, *args, **kwargs)
        if self.is_creator:
            try:
                reaper.remove_at_end(FOLDER / self.shared_memory.name)
            except OSError:  # no reason to stop generating
                logger.warning("%s/%s stays if this process is killed", FOLDER, self.shared_memory.name, exc_info=True)

    return make
