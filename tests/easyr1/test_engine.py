"""EasyR1's engine of single turns as an engine of many episodes, by its own `vLLMRollout` over a written-out LLM."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from support.easyr1 import require_easyr1

require_easyr1()

from verl.protocol import DataProto  # noqa: E402
from verl.workers.rollout.vllm_rollout_spmd import vLLMRollout  # noqa: E402

from arpo_verl.agent.models.messages import screenshot_message  # noqa: E402
from arpo_verl.easyr1.engine import TurnEngine  # noqa: E402
from arpo_verl.easyr1.images import shows_files  # noqa: E402
from arpo_verl.errors import GenerationError  # noqa: E402
from arpo_verl.types import Observation, Size  # noqa: E402


class Workers:
    """Two workers, each with the stock rollout; `reply` gives a prompt's reply."""

    world_size = 2

    def __init__(self, chat, reply):
        self.calls, self.release = [], threading.Event()
        self.release.set()
        self._chat, self._reply = chat, reply

    def generate(self, prompts, sampling_params, use_tqdm, lora_request=None):  # 0.3.2 names none
        asked = (sampling_params.n, sampling_params.max_tokens, sampling_params.logit_bias)
        self.calls[-1] += [(one, *asked) for one in prompts]
        replies = [self._reply(one["prompt_token_ids"]) for one in prompts]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)]) for ids in replies]

    def generate_sequences(self, prompts):
        self.calls.append([])
        self.release.wait(60)
        rollout = object.__new__(vLLMRollout)
        rollout.config, rollout.lora_kwargs = SimpleNamespace(response_length=12), {}
        rollout.pad_token_id, rollout.return_video_metadata = self._chat.tokenizer.pad_token_id, False
        rollout.use_tqdm, rollout.inference_engine = False, self
        image = self._chat.image_id
        rollout.sampling_params = SimpleNamespace(n=8, max_tokens=4096, temperature=1.0, logit_bias={image: -100})
        prompts.meta_info["eos_token_id"] = self._chat.end_id  # as the stock worker
        assert len(prompts) % self.world_size == 0
        return DataProto.concat([rollout.generate_sequences(part) for part in prompts.chunk(self.world_size)])


@pytest.fixture
def shown(chat, screenshot):
    decode = shows_files(chat.geometry)
    return lambda colour: asyncio.run(decode(Observation(screenshot(colour))))


@pytest.fixture
def ask(chat, shown):
    """(workers, prompt's tokens) -> the reply, to a red screenshot."""
    red = shown("red")

    async def play(workers, prompt):
        async with TurnEngine(workers, chat, 8, {}, 2.0).running() as engine:
            return await engine.generate(prompt, [red], 8)

    return lambda workers, prompt=(30,): asyncio.run(play(workers, prompt))


def test_an_engine_sees_one_placeholder_an_image_and_the_episode_gets_the_bare_reply(chat, ask):
    workers = Workers(chat, lambda ids: [20, 21, chat.end_id])
    prompt = chat.prompt([screenshot_message()], Size(640, 480))
    assert prompt.count(chat.image_id) > 1
    reply = ask(workers, prompt)
    assert reply.token_ids == (20, 21, chat.end_id) and reply.log_probs is None
    ((seen, n, most, banned), padding) = workers.calls[0]  # two workers, one prompt
    assert seen["prompt_token_ids"].count(chat.image_id) == 1 and (n, most) == (1, 8)
    assert {chat.tokenizer.convert_ids_to_tokens(id) for id in banned} == {"<|image_pad|>", "<|video_pad|>"}
    (image,) = seen["multi_modal_data"]["image"]
    assert image.size == tuple(chat.geometry.image_size(Size(640, 480)))


def test_what_is_asked_while_a_call_runs_goes_together_into_the_next(chat, shown):
    workers, red = Workers(chat, lambda ids: [ids[0], chat.end_id]), shown("red")
    workers.release.clear()

    async def play():
        async with TurnEngine(workers, chat, 8, {}, 2.0).running() as engine:
            first = asyncio.create_task(engine.generate([30], [red], 8))
            while not workers.calls:
                await asyncio.sleep(0.01)
            others = [asyncio.create_task(engine.generate([id], [red], 8)) for id in (31, 32, 33)]
            await asyncio.sleep(0)
            workers.release.set()
            return [reply.token_ids[0] for reply in await asyncio.gather(first, *others)], engine.calls

    assert asyncio.run(play()) == ([30, 31, 32, 33], 2)
    assert [len(call) for call in workers.calls] == [2, 4]


@pytest.mark.parametrize("token", ["<|video_pad|>", "<|image_pad|>"])
def test_a_placeholder_without_an_image_costs_the_episode(chat, ask, token):
    with pytest.raises(GenerationError, match="no image is behind it"):
        ask(Workers(chat, lambda ids: [chat.tokenizer.convert_tokens_to_ids(token), chat.end_id]))


def test_a_reply_without_an_end_is_cut_at_its_limit_and_has_no_padding(chat, ask):
    lengths = iter([12, 3])
    workers = Workers(chat, lambda ids: [20] * next(lengths))
    workers.world_size = 1
    assert [len(ask(workers).token_ids) for _ in range(2)] == [8, 3]


def test_an_error_of_the_workers_reaches_who_waits(chat, ask):
    def fails(ids):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        ask(Workers(chat, fails))


def test_too_few_replies_are_an_error_and_no_endless_wait(chat, ask):
    workers = Workers(chat, lambda ids: [20, chat.end_id])
    whole = workers.generate_sequences
    workers.generate_sequences = lambda prompts: whole(prompts)[:1]
    with pytest.raises(ValueError, match="shorter"):
        ask(workers)
