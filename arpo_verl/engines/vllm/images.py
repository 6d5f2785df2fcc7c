"""Keep vLLM's processed images in memory that its processes share. Each image is written once an episode.

vLLM 0.24 has two caches, by `mm_processor_cache_type`. With `lru`, its default, EngineCore pickles all images of a
request to every worker at every turn: 25 MB for each 1080p screenshot, 3 GB for an episode of 15. With `shm` they are
in a ring buffer. But each worker still copies all of a request's images. An image that is in use, or was dropped before
it was scheduled, blocks the place of all later ones. And `clear()` reuses addresses, so an older request reads another
request's picture (`tests/engines/cpu/test_vllm_images.py` shows all three).

If a recipe says `shm`, ours replaces that cache. A turn sends the address of each image
(`engines/vllm/memory_files.py`):

- the server (`ImageSender`) writes an image's file when it is processed, and keeps it for later turns. `clear_cache`,
  which vLLM calls when weights change, drops nothing: pixels do not depend on weights;
- EngineCore (`ImageHolder`) opens the files of a request when it comes in, and keeps them open while the request
  exists. A request whose file is already gone fails alone;
- a worker (`ImageReader`) maps them when a request is scheduled, and reads the pixels of those that it encodes.

A mapped file cannot change, and a missing one is an error: so no request sees another's picture.

From 0.31 on (`versions.py: OWN_CACHES`) this is not installed: with 0.32's `lru` EngineCore no longer sends what the
prefix cache covers, and the 15th turn costs what the second does (docs/vllm.md). The file, `memory_files.py` and the
patch can go when the oldest supported veRL brings such a vLLM.

vLLM has no plugin point for its caches. `register` runs in each of its processes (`engines/vllm/segments.py`) and
replaces the methods of `multimodal/registry.py: MultiModalRegistry` that make them (`engines/upstream_patches.py:
IMAGE_CACHES`).
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

from arpo_verl.engines.vllm.memory_files import Address, FileLostError, hold, read, write
from arpo_verl.errors import ConfigError, PatchLostError

logger = logging.getLogger(__name__)

KEPT_S = 60.0
"""Seconds that an unused file stays open, since another process may be about to open it. A message between processes
takes milliseconds, and a worker is at most a batch or two behind EngineCore."""
_FILES = 65_536
OPTION = "actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_cache_type"
_FIELDS = {"address": "process", "file": "file", "token": "token", "size": "size"}
"""An address's attributes, by their names in an item. From 0.29 on vLLM strips an image that the prefix cache covers
from a request, and with it what the model computes positions from, unless the item has an `address`, as its own have
(`multimodal/utils.py: strip_covered_mm_data`)."""
_VLLMS = "monotonic_id"
"""A key in what vLLM's own cache sends."""


class ImageSender:
    """The server's cache, which the image processor asks.

    Several threads may use it. An image that was used within `KEPT_S` stays. If that leaves no room for a new one, the
    new one is sent whole, as without a cache.

    Args:
        capacity: most bytes of all files together.
        now: returns the time in seconds.
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
        """Return whether the image is here. It then stays long enough for the request that asks."""
        with self._lock:
            return self._use(mm_hash) is not None

    def is_cached(self, mm_hashes: Sequence[str]) -> list[bool]:
        """Return the same for several images."""
        return [self.is_cached_item(mm_hash) for mm_hash in mm_hashes]

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        """Keep the image longer."""
        self.is_cached_item(mm_hash)

    def get_and_update_item(self, mm_item: Any, mm_hash: str) -> tuple[Any, Any]:
        """Return what goes into a request for an image, and vLLM's changes to the prompt for it.

        Args:
            mm_item: the processed image with those changes; None if it is known to be here.
            mm_hash: the image's hash.

        Raises:
            FileLostError: `mm_item` is None, and the image is no longer here.
        """
        with self._lock:
            self._total += 1
            sent = self._use(mm_hash)
            if sent is not None:
                self._hits += 1
                return _item(sent.address), sent.updates
        if mm_item is None:
            raise FileLostError(f"processed image {mm_hash} was dropped before its request was built")
        item, updates = mm_item
        address = self._write(item)
        if address is None:
            return mm_item  # type: ignore[no-any-return]  # the same pair
        with self._lock:
            other = self._use(mm_hash)
            if other is not None:  # two requests showed it first at the same time
                self._close(address)
                return _item(other.address), other.updates
            self._sent[mm_hash] = _Sent(address, updates, self._now())
        return _item(address), updates

    def get_and_update(self, mm_items: Sequence[Any], mm_hashes: Sequence[str]) -> list[tuple[Any, Any]]:
        """Return the same for several images."""
        return [self.get_and_update_item(*each) for each in zip(mm_items, mm_hashes, strict=True)]

    def clear_cache(self) -> None:
        """Keep all images: processed pixels do not depend on weights."""

    def make_stats(self, *, delta: bool = False) -> Any:
        """Return how often an image was here, for vLLM's metrics; with `delta`, since the last call."""
        from vllm.utils.cache import CacheInfo

        with self._lock:
            all_of_it = CacheInfo(hits=self._hits, total=self._total)
            if not delta:
                return all_of_it
            since, self._told = self._told, (self._hits, self._total)
            return all_of_it - CacheInfo(*since)

    def close(self) -> None:
        """Drop all images."""
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
        """Write the image into a new file; return None if there is no room."""
        size = sum(element.data.nbytes for element in item.values() if hasattr(element.data, "nbytes"))
        with self._lock:
            has_room = self._make_room(size)
        if not has_room:
            self._warn(f"its {self._capacity} bytes are all in use; raise mm_processor_cache_gb")
            return None
        try:
            address = write(item)
        except OSError as error:  # too little memory, or too many open files
            self._warn(str(error))
            return None
        with self._lock:
            self._bytes += address.size
        return address

    def _warn(self, why: str) -> None:
        """Warn once that a request's images are sent whole, as without a cache."""
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
    """The common part of the two receivers: vLLM gives them a request's images, which they change in place."""

    def get_and_update_features(self, mm_features: list[Any]) -> list[Any]:
        """Replace each address by what this side makes of it."""
        for feature in mm_features:
            feature.data = self.get_and_update_item(feature.data, feature.mm_hash or feature.identifier)
        return mm_features

    def get_and_update_item(self, mm_item: Any, mm_hash: str) -> Any:
        """Replace one address; an image that came whole stays as it is, and None is one that vLLM has stripped.

        Raises:
            FileLostError: its file is gone.
            PatchLostError: vLLM's own cache sent it.
        """
        address = _address(mm_item)
        return mm_item if address is None else self._taken(address)

    def _taken(self, address: Address) -> Any:
        raise NotImplementedError

    def clear_cache(self) -> None:
        """Do nothing: a request's files belong to the request."""


class ImageHolder(_Receiver):
    """EngineCore's side: keeps a request's files open, so that its workers find them however long it waits."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        _allow_files()
        self._now = now
        self._held: dict[int, _Held] = {}
        self._unused: OrderedDict[int, float] = OrderedDict()
        """Time since which nobody has used a file, by its token."""
        self._lock = threading.RLock()  # a request may end, and release its images, while this thread holds the lock

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
    """A worker's side: returns the processed image, whose pixels are read on first use."""

    def _taken(self, address: Address) -> Any:
        return read(address)


def _allow_files() -> int:
    """Let this process open as many files as its user may, up to 65,536 as in vLLM's own server; return how many.

    A shell allows 1,024, and the limit of `ray start` holds for the whole cluster. Each image is a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    wanted = _FILES if hard == infinite else min(hard, _FILES)
    if soft != infinite and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def _item(address: Address) -> Any:
    """Return an address in the form of a processed image, since vLLM sends nothing else."""
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    field = MultiModalBatchedField()
    numbers = {name: getattr(address, attribute) for name, attribute in _FIELDS.items()}
    return MultiModalKwargsItem(
        {name: MultiModalFieldElem(data=number, field=field) for name, number in numbers.items()}
    )


def _address(item: Any) -> Address | None:
    if item is None:
        return None
    if _VLLMS in item:
        raise PatchLostError(
            "vLLM's own cache sent an image: the server's process runs without arpo_verl's. Set VLLM_PLUGINS so that "
            f"it names arpo_verl, or {OPTION}=lru"
        )
    return Address(*(item[name].data for name in _FIELDS)) if set(item) == set(_FIELDS) else None


def replacing(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Return our version of a registry's method, for `Patch.apply`."""
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
    """Refuse to start if another process's files cannot be opened, as with a hardened /proc."""
    try:
        os.listdir(f"/proc/{process}/fd")
    except OSError as error:
        raise ConfigError(
            f"vLLM's processes must see each other's open files to share images, but /proc/{process}/fd cannot be read "
            f"({error}); run them as the same user, or set {OPTION}=lru"
        ) from error


_MADE: dict[str, Callable[[Any], Any]] = {
    "processor_cache_from_config": _sender,
    "engine_receiver_cache_from_config": _holder,
    "worker_receiver_cache_from_config": _reader,
}
