"""Loaded into each of vLLM's processes as its plugin: counts there what crosses the process's borders.

vLLM calls `register` by the entry point `vllm.general_plugins`, which `installed` puts on the path. A process keeps its
counts in a file of `BENCHMARK_COUNTERS` that others can read at any time, in the order of `COUNTS`:

- `sent`, `received`: bytes of ZeroMQ's messages, which vLLM's processes talk in;
- `written`, `read`: bytes of shared memory: of the ring buffer between EngineCore and its workers, of vLLM's store of
  images, and of files of ours in memory, of which a worker's touched pages count;
- `processed`: images that the image processor was given;
- `waited_ns`: CPU time in which a process span for a message; `model_ns`: in the model's own forward passes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wrapt

VARIABLE = "BENCHMARK_COUNTERS"
ROLES = ("api", "core", "worker")
COUNTS = ("sent", "received", "written", "read", "processed", "waited_ns", "model_ns")
BYTES = COUNTS[:4]
_counts: Any = None
_lock = threading.Lock()


@contextlib.contextmanager
def installed(folder: Path) -> Iterator[dict[str, str]]:
    """Environment variables with which processes count into `folder`."""
    plugin = folder / "vllm_counters-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-counters\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\ncounters = vllm_counters:register\n")
    yield {VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent)])}


def read_counts(folder: Path) -> dict[str, dict[str, int]]:
    """By role, the counts until now, with `cpu_ns`; of several workers their sum."""
    found: dict[str, dict[str, int]] = {}
    for path in folder.glob("*.counts"):
        role, _, pid = path.stem.partition("-")
        counts = dict(zip(COUNTS, map(int, np.memmap(path, np.int64, "r")), strict=True))
        # Linux's clock of a process's CPU time, by its number (`man clock_getres`, the macro of `CLOCK_CPU_SCHED`).
        counts["cpu_ns"] = time.clock_gettime_ns((~int(pid) << 3) | 2)
        for name, value in counts.items():
            found.setdefault(role, {}).setdefault(name, 0)
            found[role][name] += value
    return found


def difference(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """What was counted in between."""
    return {
        role: {name: value - before[role][name] for name, value in counts.items()} for role, counts in after.items()
    }


def add(name: str, value: int) -> None:
    with _lock:
        if _counts is not None:
            _counts[COUNTS.index(name)] += value


def begin(role: str) -> None:
    """Count from here on, in this process."""
    global _counts
    if _counts is None:
        path = Path(os.environ[VARIABLE], f"{role}-{os.getpid()}.counts")
        _counts = np.memmap(path, np.int64, "w+", shape=len(COUNTS))


def register() -> None:
    """Wrap what a process's messages go through. Each waits for its module."""
    if VARIABLE not in os.environ:
        return
    wrapt.register_post_import_hook(_watch_sockets, "zmq.sugar.socket")
    wrapt.register_post_import_hook(_watch_ring, "vllm.distributed.device_communicators.shm_broadcast")
    wrapt.register_post_import_hook(_watch_store, "vllm.distributed.device_communicators.shm_object_storage")
    wrapt.register_post_import_hook(_watch_files, "arpo_verl.engines.vllm.images")
    wrapt.register_post_import_hook(_watch_mappings, "vllm.v1.worker.worker_base")
    wrapt.register_post_import_hook(_watch_processor, "vllm.multimodal.processing.processor")
    wrapt.register_post_import_hook(_watch_model, "vllm.model_executor.models.qwen2_5_vl")
    for module, name, role in (
        ("vllm.v1.engine.async_llm", "AsyncLLM.__init__", "api"),
        ("vllm.v1.engine.core", "EngineCore._initialize_kv_caches", "core"),  # plugins are loaded within its __init__
        ("vllm.v1.worker.worker_base", "WorkerWrapperBase.init_device", "worker"),  # the same, within init_worker
    ):
        wrapt.register_post_import_hook(functools.partial(_watch_role, name=name, role=role), module)


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Put `around(upstream, *args, **kwargs)` in a method's place."""
    upstream = getattr(owner, name)

    @functools.wraps(upstream)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(upstream, *args, **kwargs)

    setattr(owner, name, wrapped)


def _watch_role(module: Any, name: str, role: str) -> None:
    owner, method = name.split(".")

    def made(upstream: Any, *args: Any, **kwargs: Any) -> Any:
        begin(role)
        return upstream(*args, **kwargs)

    _wrap(getattr(module, owner), method, made)


def _watch_sockets(module: Any) -> None:
    """An asynchronous socket, and a message of several parts, go through these too."""

    def sent(upstream: Any, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        add("sent", len(data) if hasattr(data, "bytes") else memoryview(data).nbytes)
        return upstream(self, data, *args, **kwargs)

    def received(upstream: Any, *args: Any, **kwargs: Any) -> Any:
        data = upstream(*args, **kwargs)
        add("received", len(data))
        return data

    _wrap(module.Socket, "send", sent)
    _wrap(module.Socket, "recv", received)


class _Counted:
    """A piece of shared memory whose accesses are counted."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer

    def __getitem__(self, key: Any) -> Any:
        found = self._buffer[key]
        add("read", len(found) if isinstance(found, memoryview) else 1)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        add("written", memoryview(value).nbytes if isinstance(key, slice) else 1)
        self._buffer[key] = value


def _watch_ring(module: Any) -> None:
    """A reader's wait counts while it lasts: a turn may begin or end within it."""
    thread = threading.local()

    def count_wait() -> None:
        now = time.thread_time_ns()
        add("waited_ns", now - thread.counted)
        thread.counted = now

    @contextlib.contextmanager
    def acquired(upstream: Any, *args: Any, **kwargs: Any) -> Iterator[_Counted]:
        thread.counted = time.thread_time_ns()
        with upstream(*args, **kwargs) as buffer:
            count_wait()
            yield _Counted(buffer)

    def waited(upstream: Any, *args: Any, **kwargs: Any) -> None:
        count_wait()
        upstream(*args, **kwargs)
        count_wait()

    _wrap(module.SpinCondition, "wait", waited)
    _wrap(module.MessageQueue, "acquire_read", acquired)
    _wrap(module.MessageQueue, "acquire_write", acquired)


def _watch_store(module: Any) -> None:
    def written(upstream: Any, self: Any, data: Any, data_bytes: int, *args: Any) -> None:
        add("written", data_bytes)
        upstream(self, data, data_bytes, *args)

    def read(upstream: Any, self: Any, data_view: memoryview) -> Any:
        add("read", len(data_view))
        return upstream(self, data_view)

    _wrap(module.SingleWriterShmObjectStorage, "copy_to_buffer", written)
    _wrap(module.MsgpackSerde, "deserialize", read)


def _watch_files(module: Any) -> None:
    def written(upstream: Any, *args: Any) -> Any:
        address = upstream(*args)
        add("written", address.size)
        return address

    _wrap(module, "write", written)


def _watch_mappings(module: Any) -> None:
    """What a worker reads of files in memory is in no call: the kernel knows which of their pages it touched."""
    touched: dict[str, int] = {}

    def executed(upstream: Any, *args: Any, **kwargs: Any) -> Any:
        result = upstream(*args, **kwargs)
        begun = time.process_time_ns()
        now = dict(_mappings())
        add("read", sum(max(0, size - touched.get(name, 0)) for name, size in now.items()))
        touched.clear()
        touched.update(now)
        add("waited_ns", time.process_time_ns() - begun)
        return result

    _wrap(module.WorkerWrapperBase, "execute_model", executed)


def _mappings() -> Iterator[tuple[str, int]]:
    """Of each file in memory that this process has mapped, by place and number, bytes that it touched."""
    name = ""
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split(maxsplit=1)[0]
            if not first.endswith(":"):
                name = line if "/memfd:arpo_verl" in line else ""
            elif name and first == "Rss:":
                yield name, 1024 * int(line.split()[1])


def _watch_processor(module: Any) -> None:
    def looked_up(upstream: Any, *args: Any, **kwargs: Any) -> Any:
        cached, missing = upstream(*args, **kwargs)
        add("processed", cached.get("image", []).count(False))
        return cached, missing

    _wrap(module.BaseMultiModalProcessor, "_get_cache_missing_items", looked_up)


def _watch_model(module: Any) -> None:
    def timed(upstream: Any, *args: Any, **kwargs: Any) -> Any:
        begun = time.process_time_ns()
        try:
            return upstream(*args, **kwargs)
        finally:
            add("model_ns", time.process_time_ns() - begun)

    for name in ("forward", "embed_multimodal"):
        _wrap(module.Qwen2_5_VLForConditionalGeneration, name, timed)
