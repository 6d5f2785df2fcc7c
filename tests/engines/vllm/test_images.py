"""vLLM's cache of processed images in shared memory: a request sees its own pictures, or fails."""

import contextlib
import gc
import os
import pickle
import random
import resource
import sys
import threading
from collections import UserDict
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from arpo_verl.engines.upstream_patches import IMAGE_CACHES
from arpo_verl.engines.vllm import images as vllm_images
from arpo_verl.engines.vllm.images import KEPT_S, ImageHolder, ImageReader, ImageSender, replacing
from arpo_verl.engines.vllm.memory_files import FileLostError
from arpo_verl.errors import PatchLostError

PIXELS = 4096


class MultiModalKwargsItem(UserDict):
    pass


class MultiModalBatchedField:
    pass


@dataclass
class MultiModalFieldElem:
    data: Any
    field: Any


@pytest.fixture(autouse=True)
def vllms_items(monkeypatch):
    """vLLM's own are tried in the environment that has it: tests/engines/cpu/test_vllm_images.py."""
    module = ModuleType("vllm.multimodal.inputs")
    for each in (MultiModalKwargsItem, MultiModalBatchedField, MultiModalFieldElem):
        setattr(module, each.__name__, each)
    for name in ("vllm", "vllm.multimodal"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Engine:
    """The three sides, with messages between them as vLLM sends them."""

    def __init__(self, capacity_images=100):
        self.clock = Clock()
        self.sender = ImageSender(capacity_images * (PIXELS * 2 + 2000), self.clock)
        self.holder, self.reader = ImageHolder(self.clock), ImageReader()
        self.processed = []

    def prepare(self, numbers):
        """What the server sends to EngineCore for a request that shows these images."""
        hashes = [f"hash {number}" for number in numbers]
        items = []
        for number, is_cached in zip(numbers, self.sender.is_cached(hashes), strict=True):
            items.append(None if is_cached else (image(number), f"update {number}"))
            if not is_cached:
                self.processed.append(number)
        prepared = self.sender.get_and_update(items, hashes)
        assert [update for _, update in prepared] == [f"update {number}" for number in numbers]
        features = [feature(item, key) for (item, _), key in zip(prepared, hashes, strict=True)]
        return pickle.dumps(features)

    def take_in(self, message):
        """What EngineCore keeps of it."""
        return self.holder.get_and_update_features(pickle.loads(message))

    def schedule(self, features):
        """The numbers of the images that a worker sees."""
        found = self.reader.get_and_update_features(pickle.loads(pickle.dumps(features)))
        shown = [each.data["pixel_values"].data for each in found]
        assert all((pixels == pixels[0]).all() for pixels in shown)
        return [int(pixels[0]) for pixels in shown]


def image(number):
    field = MultiModalBatchedField()
    pixels = torch.full((PIXELS,), float(number), dtype=torch.bfloat16)
    return MultiModalKwargsItem({"pixel_values": MultiModalFieldElem(pixels, field)})


def feature(item, key):
    return SimpleNamespace(data=item, mm_hash=key, identifier=key)


def test_a_turn_processes_and_sends_what_is_new():
    engine = Engine()
    sizes = []
    for turn in range(1, 16):
        message = engine.prepare(range(turn))
        sizes.append(len(message) / turn)
        assert engine.schedule(engine.take_in(message)) == list(range(turn))
    assert engine.processed == list(range(15))
    assert max(sizes) < PIXELS / 4
    assert engine.sender._hits == sum(range(15))


def test_a_request_that_waits_is_safe_from_whatever_comes_after_it():
    engine = Engine(capacity_images=2)
    waiting = engine.take_in(engine.prepare([1, 2]))
    for number in range(3, 9):
        engine.clock.now += 2 * KEPT_S
        assert engine.schedule(engine.take_in(engine.prepare([number]))) == [number]
    assert not any(engine.sender.is_cached(["hash 1", "hash 2"]))
    assert engine.schedule(waiting) == [1, 2]


def test_a_request_that_was_dropped_before_it_was_scheduled_blocks_nothing():
    engine = Engine(capacity_images=2)
    engine.prepare([1, 2])  # never arrives
    engine.take_in(engine.prepare([1, 2]))  # never scheduled
    gc.collect()
    for number in range(3, 30):
        engine.clock.now += 2 * KEPT_S
        engine.take_in(engine.prepare([number]))
        assert engine.sender.is_cached_item(f"hash {number}")
        assert len(engine.holder._held) <= 2


def test_a_message_that_arrives_too_late_fails_alone():
    engine = Engine(capacity_images=2)
    late = engine.prepare([1, 2])
    for number in (3, 4):
        engine.clock.now += 2 * KEPT_S
        engine.prepare([number])
    with pytest.raises(FileLostError):
        engine.take_in(late)
    assert engine.schedule(engine.take_in(engine.prepare([4, 5]))) == [4, 5]


def test_images_that_do_not_fit_go_whole_and_those_of_the_same_request_stay():
    engine = Engine(capacity_images=2)
    assert engine.schedule(engine.take_in(engine.prepare([1, 2, 3]))) == [1, 2, 3]
    assert engine.sender.is_cached(["hash 1", "hash 2", "hash 3"]) == [True, True, False]
    assert engine.schedule(engine.take_in(engine.prepare([1, 2, 3]))) == [1, 2, 3]
    assert engine.processed == [1, 2, 3, 3]


def test_an_image_that_cannot_be_written_goes_whole(monkeypatch, caplog):
    def full(item):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vllm_images, "write", full)
    engine = Engine()
    assert engine.schedule(engine.take_in(engine.prepare([1]))) == [1]
    assert "No space left" in caplog.text


def test_new_weights_leave_the_images(monkeypatch):
    engine = Engine()
    engine.prepare([1])
    for side in (engine.sender, engine.holder, engine.reader):
        side.clear_cache()
    assert engine.schedule(engine.take_in(engine.prepare([1]))) == [1]
    assert engine.processed == [1]


def test_fifty_weight_updates_with_requests_dropped_at_drawn_moments_show_nobody_anothers_picture():
    draw = random.Random(0)
    engine = Engine(capacity_images=60)
    episodes = {episode: 1 for episode in range(8)}
    turns = shown = 0
    on_the_way, waiting = [], []
    for _ in range(50):
        for _ in range(20):
            engine.clock.now += draw.uniform(0, 3)
            episode = draw.choice(list(episodes))
            numbers = [15 * episode + turn for turn in range(episodes[episode])]
            on_the_way.append((numbers, engine.prepare(numbers)))
            turns += 1
            if draw.random() < 0.8 and on_the_way:
                numbers, message = on_the_way.pop(draw.randrange(len(on_the_way)))
                try:
                    waiting.append((numbers, engine.take_in(message)))
                except FileLostError:
                    continue
            if draw.random() < 0.8 and waiting:
                numbers, features = waiting.pop(draw.randrange(len(waiting)))
                # bfloat16 holds whole numbers up to 256
                assert engine.schedule(features) == [number % 256 for number in numbers]
                shown += 1
            if episodes[episode] == 15:
                del episodes[episode]
                episodes[(max(episodes) + 1) % 17] = 1
            else:
                episodes[episode] += 1
        del waiting[:], on_the_way[:]  # aborted
        for side in (engine.sender, engine.holder, engine.reader):
            side.clear_cache()
    assert shown > 500 and len(engine.processed) < 2 * turns
    engine.sender.close()


def memory_files() -> int:
    """How many of our files this process has open; what other threads open does not count."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    return found


@pytest.mark.parametrize("make", [lambda: ImageSender(1), ImageHolder])
def test_a_shells_limit_of_open_files_is_none_for_images(make):
    """An image is a file in both processes, and a shell's 1,024 may be what a whole cluster was started with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= 1024:
        pytest.skip("this user may not have more files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        make()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard % 2**64, 65_536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_are_closed_when_nobody_needs_them():
    gc.collect()
    before = memory_files()
    engine = Engine()
    features = engine.take_in(engine.prepare(range(15)))
    assert memory_files() >= before + 15
    engine.sender.close()
    del features
    gc.collect()
    engine.clock.now += 2 * KEPT_S
    engine.holder._close_unused()
    assert memory_files() == before


def test_threads_that_show_the_same_image_first_share_it():
    engine = Engine()
    begin = threading.Barrier(8)
    found = []

    def show():
        begin.wait()
        item, _ = engine.sender.get_and_update_item((image(1), "update"), "hash 1")
        found.append(item["token"].data)

    threads = [threading.Thread(target=show) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(engine.sender._sent) == 1


def test_an_image_that_the_prefix_cache_covers_is_none_lost():
    engine = Engine()
    features = engine.take_in(engine.prepare([1, 2]))
    assert all("address" in each.data for each in features), "by this name vLLM leaves an image with its request"
    stripped = [feature(None, "hash 1"), feature(MultiModalKwargsItem(), "hash 1"), features[1]]
    found = engine.reader.get_and_update_features(pickle.loads(pickle.dumps(stripped)))
    assert (found[0].data, dict(found[1].data)) == (None, {}) and engine.schedule(features) == [1, 2]


def test_an_image_that_vllms_own_cache_sent_ends_the_run():
    item = MultiModalKwargsItem({name: MultiModalFieldElem(0, None) for name in ("address", "monotonic_id")})
    for side in (ImageHolder(), ImageReader()):
        with pytest.raises(PatchLostError, match="mm_processor_cache_type=lru"):
            side.get_and_update_item(item, "hash")


def test_only_shared_memory_is_ours():
    class MultiModalRegistry:
        def _get_cache_type(self, config):
            return config.cache_type

        def processor_cache_from_config(self, config):
            return "vllm's"

        engine_receiver_cache_from_config = processor_cache_from_config

        def worker_receiver_cache_from_config(self, config, shared_worker_lock):
            return "vllm's"

    module = ModuleType("stand_in")
    module.MultiModalRegistry = MultiModalRegistry
    IMAGE_CACHES.apply(module, replacing)
    multimodal = SimpleNamespace(mm_processor_cache_gb=1.5)
    model = SimpleNamespace(get_multimodal_config=lambda: multimodal)
    registry = MultiModalRegistry()

    def made(cache_type):
        config = SimpleNamespace(cache_type=cache_type, model_config=model)
        return (
            registry.processor_cache_from_config(config),
            registry.engine_receiver_cache_from_config(config),
            registry.worker_receiver_cache_from_config(config, shared_worker_lock=None),
        )

    assert [made(kind) for kind in (None, "lru", "processor_only")] == [("vllm's",) * 3] * 3
    sender, holder, reader = made("shm")
    assert sender._capacity == 3 << 29
    assert isinstance(holder, ImageHolder) and isinstance(reader, ImageReader)
