"""vLLM's cache of processed images, kept in memory that its processes share: each image is written once an episode.

vLLM 0.24 has two caches, by `mm_processor_cache_type`. With `lru`, its default, EngineCore pickles all images of a
request to every worker at every turn: 25 MB for each 1080p screenshot, 3 GB an episode of 15. With `shm` they lie in a
ring buffer; but each worker still copies all of a request's, what is in use or was dropped before it was scheduled
blocks the place of all that came later, and `clear()` gives the same addresses out again, so a request from before
reads another's picture (`tests/cpu/test_vllm_images.py` shows all three).

Where a recipe says `shm`, ours takes that cache's place. A turn sends the address of each image (`memory_files.py`):

- the server (`ImageSender`) writes an image's file when it is processed, and keeps it for later turns. `clear_cache`,
  which vLLM calls when weights change, drops nothing: pixels do not depend on weights;
- EngineCore (`ImageHolder`) opens the files of a request when it comes in, and has them open while the request is
  there. A request whose file is gone by then fails alone;
- a worker (`ImageReader`) maps them when a request is scheduled, and reads the pixels of those that it encodes.

What a process has mapped cannot change, and what is gone is an error: no request sees another's picture.

vLLM has no plugin point for its caches. `register` runs in each of its processes (`vllm_segments.py`), and replaces the
methods of `multimodal/registry.py: MultiModalRegistry` that make them (`upstream_patches.py: IMAGE_CACHES`).
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arpo_verl.errors import ConfigError, PatchLostError
from arpo_verl.memory_files import Address, FileLostError, hold, read, write

logger = logging.getLogger(__name__)

KEPT_S = 60.0
"""How long a file stays open that nobody in its process needs: another process may be about to open it. A message takes
milliseconds from one to the other, and a worker is at most a batch or two behind EngineCore."""
_FILES = 65_536
OPTION = "actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_cache_type"
_FIELDS = ("process", "file", "token", "size")
_VLLMS = "address"
"""In what vLLM's own cache sends."""


class ImageSender:
    """The server's side: the cache that the image processor asks.

    Several threads may use it. An image that was asked for within `KEPT_S` stays; where that leaves no room for a new
    one, the new one is sent whole, as without a cache.

    Args:
        capacity: of all files together, in bytes.
        now: the time in seconds.
    """

    def __init__(self, capacity: int, now: Callable[[], float] = time.monotonic) -> None:
        self._capacity, self._now = capacity, now
        files = _allow_files()
        self._max_files = sys.maxsize if files == resource.RLIM_INFINITY else files // 2
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._bytes = self._hits = self._total = 0
        self._told = (0, 0)
        self._has_warned = False
        self._lock = threading.Lock()

    def is_cached_item(self, mm_hash: str) -> bool:
        """Whether it is there; it then stays long enough for the request that asks."""
        with self._lock:
            return self._use(mm_hash) is not None

    def is_cached(self, mm_hashes: Sequence[str]) -> list[bool]:
        """The same of several."""
        return [self.is_cached_item(mm_hash) for mm_hash in mm_hashes]

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        """Let it stay."""
        self.is_cached_item(mm_hash)

    def get_and_update_item(self, mm_item: Any, mm_hash: str) -> tuple[Any, Any]:
        """What goes into a request for an image, and vLLM's changes to the prompt for it.

        Args:
            mm_item: the processed image with those changes; None where it is known to be there.
            mm_hash: of the image.

        Raises:
            FileLostError: it is None, and the image is not there any more.
        """
        with self._lock:
            self._total += 1
            sent = self._use(mm_hash)
            if sent is not None:
                self._hits += 1
                return _item(sent.address), sent.updates
        if mm_item is None:
            raise FileLostError(f"processed image {mm_hash} was dropped before its request was put together")
        item, updates = mm_item
        address = self._write(item)
        if address is None:
            return mm_item  # type: ignore[no-any-return]  # the same two
        with self._lock:
            other = self._use(mm_hash)
            if other is not None:  # two requests showed it for the first time
                self._close(address)
                return _item(other.address), other.updates
            self._sent[mm_hash] = _Sent(address, updates, self._now())
        return _item(address), updates

    def get_and_update(self, mm_items: Sequence[Any], mm_hashes: Sequence[str]) -> list[tuple[Any, Any]]:
        """The same of several."""
        return [self.get_and_update_item(*each) for each in zip(mm_items, mm_hashes, strict=True)]

    def clear_cache(self) -> None:
        """Keep all: processed pixels are the same with other weights."""

    def make_stats(self, *, delta: bool = False) -> Any:
        """How often an image was there, for vLLM's metrics; with `delta`, since the last call."""
        from vllm.utils.cache import CacheInfo

        with self._lock:
            all_of_it = CacheInfo(hits=self._hits, total=self._total)
            if not delta:
                return all_of_it
            since, self._told = self._told, (self._hits, self._total)
            return all_of_it - CacheInfo(*since)

    def close(self) -> None:
        """Drop all."""
        with self._lock:
            while self._sent:
                self._close(self._sent.popitem()[1].address)

    def _use(self, mm_hash: str) -> _Sent | None:
        sent = self._sent.get(mm_hash)
        if sent is not None:
            sent.used_at = self._now()
            self._sent.move_to_end(mm_hash)
        return sent

    def _write(self, item: Any) -> Address | None:
        """The image's new file; None where there is no room for it."""
        size = sum(element.data.nbytes for element in item.values() if hasattr(element.data, "nbytes"))
        with self._lock:
            has_room = self._make_room(size)
        if not has_room:
            self._warn(f"its {self._capacity} bytes are all in use; raise mm_processor_cache_gb")
            return None
        try:
            address = write(item)
        except OSError as error:  # memory, or open files
            self._warn(str(error))
            return None
        with self._lock:
            self._bytes += address.size
        return address

    def _warn(self, why: str) -> None:
        """Once: a request's images are sent whole then, as without a cache."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("an image does not fit into vLLM's cache of processed images: %s", why)

    def _make_room(self, size: int) -> bool:
        while self._bytes + size > self._capacity or len(self._sent) >= self._max_files:
            oldest = next(iter(self._sent), None)
            if oldest is None or self._sent[oldest].used_at > self._now() - KEPT_S:
                return False
            self._close(self._sent.pop(oldest).address)
        return True

    def _close(self, address: Address) -> None:
        os.close(address.file)
        self._bytes -= address.size


@dataclass
class _Sent:
    address: Address
    updates: Any
    used_at: float


class _Receiver:
    """What both other sides have in common: vLLM hands them a request's images, which they change in place."""

    def get_and_update_features(self, mm_features: list[Any]) -> list[Any]:
        """Put in the place of each address what this side makes of it."""
        for feature in mm_features:
            feature.data = self.get_and_update_item(feature.data, feature.mm_hash or feature.identifier)
        return mm_features

    def get_and_update_item(self, mm_item: Any, mm_hash: str) -> Any:
        """The same of one; an image that came whole stays as it is.

        Raises:
            FileLostError: its file is gone.
            PatchLostError: it was sent by vLLM's own cache.
        """
        address = _address(mm_item)
        return mm_item if address is None else self._taken(address)

    def _taken(self, address: Address) -> Any:
        raise NotImplementedError

    def clear_cache(self) -> None:
        """Nothing: what a request holds is its own."""


class ImageHolder(_Receiver):
    """EngineCore's side: has a request's files open, so that its workers find them however long it waits."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        _allow_files()
        self._now = now
        self._held: dict[int, _Held] = {}
        self._unused: OrderedDict[int, float] = OrderedDict()
        """Since when nobody has used it, by token."""
        self._lock = threading.RLock()  # a request may end, and its images with it, while this thread has it

    def _taken(self, address: Address) -> Any:
        with self._lock:
            self._close_unused()
            held = self._held.get(address.token)
            if held is None:
                held = self._held[address.token] = _Held(hold(address))
            held.users += 1
            self._unused.pop(address.token, None)
        item = _item(held.address)
        weakref.finalize(item, self._release, address.token).atexit = False
        return item

    def _release(self, token: int) -> None:
        with self._lock:
            held = self._held[token]
            held.users -= 1
            if not held.users:
                self._unused[token] = self._now()

    def _close_unused(self) -> None:
        while self._unused:
            token, since = next(iter(self._unused.items()))
            if since > self._now() - KEPT_S:
                return
            del self._unused[token]
            os.close(self._held.pop(token).address.file)


@dataclass
class _Held:
    address: Address
    users: int = 0


class ImageReader(_Receiver):
    """A worker's side: the processed image, whose pixels are read where they are first looked at."""

    def _taken(self, address: Address) -> Any:
        return read(address)


def _allow_files() -> int:
    """Let this process have as many files open as its user may, up to 65,536 as vLLM's own server; returns how many.

    A shell gives 1,024, and what `ray start` was called from gives its limit to all of a cluster. Each image is a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    wanted = _FILES if hard == infinite else min(hard, _FILES)
    if soft != infinite and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def _item(address: Address) -> Any:
    """An address in the form of a processed image, which is all that vLLM sends."""
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    field = MultiModalBatchedField()
    numbers = {name: getattr(address, name) for name in _FIELDS}
    return MultiModalKwargsItem(
        {name: MultiModalFieldElem(data=number, field=field) for name, number in numbers.items()}
    )


def _address(item: Any) -> Address | None:
    if item is None or set(item) == {_VLLMS, "monotonic_id"}:
        raise PatchLostError(
            "an image was sent by vLLM's own cache: the server's process runs without arpo_verl's. Set VLLM_PLUGINS so "
            f"that it names arpo_verl, or {OPTION}=lru"
        )
    return Address(*(item[name].data for name in _FIELDS)) if set(item) == set(_FIELDS) else None


def replacing(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of a registry's method, as `Patch.apply` asks for it."""
    make = _MADE[name.rpartition(".")[2]]

    @functools.wraps(upstream)
    def made(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if self._get_cache_type(vllm_config) != "shm":
            return upstream(self, vllm_config, *args, **kwargs)
        return make(vllm_config)

    return made


def _sender(vllm_config: Any) -> ImageSender:
    return ImageSender(int(vllm_config.model_config.get_multimodal_config().mm_processor_cache_gb * 2**30))


def _holder(vllm_config: Any) -> ImageHolder:
    _require_files_of(os.getppid())
    return ImageHolder()


def _reader(vllm_config: Any) -> ImageReader:
    _require_files_of(os.getppid())
    return ImageReader()


def _require_files_of(process: int) -> None:
    """Refuse to start where another process's files cannot be opened, as with a hardened /proc."""
    try:
        os.listdir(f"/proc/{process}/fd")
    except OSError as error:
        raise ConfigError(
            f"vLLM's processes must see each other's open files to share images, but /proc/{process}/fd cannot be read "
            f"({error}); run them as one user, or set {OPTION}=lru"
        ) from error


_MADE: dict[str, Callable[[Any], Any]] = {
    "processor_cache_from_config": _sender,
    "engine_receiver_cache_from_config": _holder,
    "worker_receiver_cache_from_config": _reader,
}
