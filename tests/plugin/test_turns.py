"""Many episodes in one process, turn by turn: what is sent, what is processed, and who waits for whom."""

import asyncio
import gc
import pickle
from contextlib import asynccontextmanager
from types import SimpleNamespace

import event_loop_parts as parts
import numpy as np
import pytest
import ray
from PIL import ExifTags
from support.loop_harness import DONE, MISS, ROW, FakePool, ScriptedEngine, make_loop, play, recipe
from support.pictures import screenshot
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from arpo_verl.engines.cpu.generation.prompts import PromptPreparer
from arpo_verl.errors import DesktopLostError
from arpo_verl.lib.images import read_image
from arpo_verl.plugin.queue import TRAINING
from arpo_verl.plugin.sent_images import SentImage, take_in
from arpo_verl.types import Observation, Size

SCREEN = Size(1920, 1080)
CONTEXTS = {
    "full": {"max_screenshots": None},
    "window": {"context": "window", "max_screenshots": 2},
    "segments": {"context": "segments", "max_screenshots": 3, "kept_screenshots": 2},
}
LENGTHS = {"prompt_length": 2048, "response_length": 4096}


def episode(policy, tokenizer, agent, steps=6):
    engine = ScriptedEngine(tokenizer, [MISS] * (steps - 1) + [DONE])
    play(policy, engine, FakePool(), recipe({"max_steps": 8, **agent}, **LENGTHS))
    return engine


@pytest.mark.parametrize("agent", CONTEXTS.values(), ids=CONTEXTS)
def test_all_requests_of_an_episode_go_to_one_replica_however_many_rows_it_has(policy, tokenizer, agent):
    balancer = GlobalRequestLoadBalancer({f"server-{number}": object() for number in range(8)})
    episodes = [episode(policy, tokenizer, agent) for _ in range(4)]
    # In turns, so that another replica is always the one with the least to do.
    replicas = [
        {balancer.acquire_server(episode.calls[turn]["request_id"])[0] for turn in range(6)} for episode in episodes
    ]
    assert [len(names) for names in replicas] == [1] * 4 and len(set.union(*replicas)) == 4


@pytest.mark.parametrize("agent", CONTEXTS.values(), ids=CONTEXTS)
def test_the_engine_processes_each_screenshot_once_and_decodes_none_of_the_others(policy, tokenizer, agent):
    engine = episode(policy, tokenizer, agent)
    _, processor = policy
    shown = [image for call in engine.calls for image in call["images"]]
    assert len(shown) > 6 and len({image.id for image in shown}) == 6
    processed = []
    counting = SimpleNamespace(
        image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id,
        get_rope_index=processor.get_rope_index,
        image_processor=_Counting(processor.image_processor, processed),
    )
    preparer = PromptPreparer(counting)
    for call in engine.calls:
        # What each turn's request is unpickled to, as if it came from another process: no pixel in it.
        arrived = [SentImage(image._screenshot, Size(*image.size)) for image in call["images"]]
        preparer.prepare(call["prompt_ids"], arrived, {})
        assert sum(image._read is None for image in arrived) == 1
    assert len(processed) == 6


class _Counting:
    def __init__(self, image_processor, processed):
        self.merge_size = image_processor.merge_size
        self._image_processor, self._processed = image_processor, processed

    def __call__(self, images, **kwargs):
        self._processed.extend(images)
        return self._image_processor(images=images, **kwargs)


def test_a_screenshot_that_is_no_picture_costs_the_desktop_not_the_generation():
    with pytest.raises(DesktopLostError, match="the desktop must send"):
        asyncio.run(take_in(Observation(screenshot(1)[:-200])))


def test_a_screenshot_travels_once_and_arrives_as_it_was(local_ray):
    shot = screenshot(7)
    image = SentImage(shot, Size(640, 480))

    @ray.remote
    class Engine:
        """Asyncio, as veRL's servers are: an image is looked at in another thread."""

        async def look(self, images):
            pixels = await asyncio.to_thread(lambda: [np.asarray(image) for image in images])
            return [
                (image.getexif()[ExifTags.Base.ImageID], array) for image, array in zip(images, pixels, strict=True)
            ]

    engine = Engine.options(num_cpus=0).remote()
    for _ in range(2):
        (id, pixels), _ = ray.get(engine.look.remote([image, image]))
        assert id == image.id
        assert np.array_equal(pixels, np.asarray(read_image(shot)))
    reference = image._reference
    assert ray.get(reference) == shot and len(ray.cloudpickle.dumps([image] * 15)) < 15 * 500
    assert image._reference is reference and image._read is not None, "sent, and never decoded here"
    elsewhere = pickle.loads(pickle.dumps(ray.get(ray.put([image]))[0]))
    assert elsewhere.tobytes() == read_image(shot).tobytes()


class ThreadedPool(FakePool):
    """Desktops of 1920x1080 that paint in threads, and each screenshot is another."""

    @asynccontextmanager
    async def lease(self, task_id):
        desktop = parts.Desktop(SimpleNamespace(screen_size=SCREEN), f"desktop-{len(self.desktops)}")
        self.desktops.append(desktop)

        async def reset(task):
            return await asyncio.to_thread(desktop.reset, task)

        async def step(action):
            return await asyncio.to_thread(desktop.step, action)

        async def evaluate():
            return desktop.evaluate()

        yield SimpleNamespace(name=desktop.name, host="here", reset=reset, step=step, evaluate=evaluate)


@pytest.mark.release
@pytest.mark.parametrize("context", ["full", "window"])
def test_episodes_of_1080p_do_not_hold_up_each_other(policy, tokenizer, rollouts, empty_queue, monkeypatch, context):
    monkeypatch.setattr(parts, "ACT_S", (0.0, 0.2))
    pixels = {"min_pixels": 3136, "max_pixels": 2116800}
    agent = {"max_steps": 6, "max_screenshots": None} if context == "full" else {**CONTEXTS[context], "max_steps": 6}
    config = recipe(agent, prompt_length=2**14, response_length=2**15, data={"mm_processor_kwargs": pixels})
    pool = ThreadedPool()

    async def session(number):
        row = {**ROW, "uid": f"uid-{number}", "session_id": 0}
        engine = ScriptedEngine(tokenizer, [MISS] * 6)
        output = await make_loop(policy, engine, pool, config).run({}, **row)
        await rollouts.worker._agent_loop_postprocess(output, False, **row)

    async def sessions():
        await session("first")  # what a process compiles once
        gc.collect(), gc.freeze()  # as a rollout worker does it: a full collection takes longer than what is measured
        watch = parts.LoopWatch()
        try:
            await asyncio.gather(*map(session, range(12)))
        finally:
            watch.stop()
            gc.unfreeze()
        return watch

    watch = asyncio.run(sessions())
    rows = 1 if context == "full" else 5
    assert len(empty_queue.kv_list()[TRAINING]) == 13 * rows
    assert watch.callbacks > 100
    assert max((block.cpu_ms for block in watch.blocks), default=0) < 50, watch.blocks
