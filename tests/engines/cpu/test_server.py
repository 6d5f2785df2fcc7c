"""The server speaks veRL's interface; run here without Ray, as the plain class that Ray makes an actor of."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from support.generation_harness import request

from arpo_verl.errors import ConfigError


@pytest.fixture(scope="module")
def rollout_config() -> Any:
    from verl.workers.config import RolloutConfig

    engine_kwargs = {"transformers": {"max_batch_size": 4}}
    lengths = {"prompt_length": 512, "response_length": 16, "tensor_model_parallel_size": 1}
    return RolloutConfig(name="transformers", dtype="float32", engine_kwargs=engine_kwargs, **lengths)


@pytest.fixture(scope="module")
def model_config(policy) -> Any:
    from verl.workers.config import HFModelConfig

    return HFModelConfig(path=str(policy), override_config={"attn_implementation": "sdpa"})


@pytest.fixture
def server(rollout_config, model_config) -> Any:
    from arpo_verl.engines.cpu.server import TransformersServer

    torch.manual_seed(0)  # with and without a cache, one in 60,000 random models writes two replies
    return TransformersServer(rollout_config, model_config, replica_rank=0)


@pytest.fixture(scope="module")
def trained(policy) -> dict[str, np.ndarray]:
    """The policy's weights, as the adapter sends them: the server starts with random ones."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def generate(server: Any, prompt: list[int], request_id: str = "r", images: Any = None, **sampling: Any) -> Any:
    params = {**SAMPLING, "max_tokens": 6, "ignore_eos": True, **sampling}
    return server.generate(prompt, params, request_id, image_data=images)


def test_concurrent_requests_come_back_with_the_trainers_log_probs(server, trained, plain, screenshots):
    async def scenario() -> list[Any]:
        await server.update_weights(trained, global_steps=7)
        early = [
            asyncio.create_task(generate(server, plain.prompt(f"Task {i}.", [image]), str(i), [image]))
            for i, image in enumerate(screenshots)
        ]
        await asyncio.sleep(0.02)
        late = [asyncio.create_task(generate(server, plain.prompt(f"Late {i}."), f"late {i}")) for i in range(3)]
        return await asyncio.gather(*early, *late)

    outputs = asyncio.run(scenario())
    prompts = [plain.prompt(f"Task {i}.", [image]) for i, image in enumerate(screenshots)]
    prompts += [plain.prompt(f"Late {i}.") for i in range(3)]
    for i, (output, prompt) in enumerate(zip(outputs, prompts, strict=True)):
        one = request("r", prompt, screenshots[i : i + 1], max_tokens=6)
        expected = plain.log_probs(one, output)
        torch.testing.assert_close(torch.tensor(output.log_probs), expected, rtol=0, atol=1e-4, check_dtype=False)
        assert output.stop_reason == "completed"
        assert output.extra_fields["global_steps"] == 7


def test_new_weights_change_the_reply_and_drop_the_caches(server, trained, plain):
    async def scenario() -> list[Any]:
        prompt = plain.prompt("Task.")
        outputs = [await generate(server, prompt, seed=1) for _ in range(2)]
        await server.update_weights(trained, global_steps=1)
        return [*outputs, await generate(server, prompt, seed=1)]

    first, second, third = asyncio.run(scenario())
    assert first.token_ids == second.token_ids != third.token_ids
    assert [o.extra_fields["num_cached_tokens"] > 0 for o in (first, second, third)] == [False, True, False]


def test_vision_placeholders_are_never_sampled_even_when_the_model_loves_them(server, plain):
    tokenizer = plain.processor.tokenizer
    marks = ["<|image_pad|>", "<|video_pad|>"]
    loved = torch.tensor(tokenizer.convert_tokens_to_ids(marks))
    server._generator.model.lm_head.register_forward_hook(lambda _m, _i, out: out.index_fill(-1, loved, 30.0))

    async def scenario() -> list[Any]:
        prompt = plain.prompt("Task.")
        return [await generate(server, prompt, temperature=temperature) for temperature in (1.0, 0)]

    for output in asyncio.run(scenario()):
        assert not set(loved.tolist()) & set(output.token_ids)
        # Honest: the trainer, which masks nothing, would say the same of what was drawn.
        assert max(output.log_probs) < -20


def test_padding_rows_of_the_embedding_table_are_banned(model_config):
    from arpo_verl.engines.cpu.model import banned_token_ids

    text = model_config.hf_config.text_config
    real = text.vocab_size
    try:
        text.vocab_size = real + 3
        assert banned_token_ids(model_config)[-3:] == [real, real + 1, real + 2]
    finally:
        text.vocab_size = real


def test_abort_ends_running_requests_and_holds_new_ones_until_resume(server, plain):
    async def scenario() -> tuple[Any, ...]:
        prompt = plain.prompt("Task.")
        running = [asyncio.create_task(generate(server, prompt, str(i), max_tokens=4000)) for i in range(6)]
        while not server._generator._running:
            await asyncio.sleep(0)
        report = await server.abort_all_requests()
        outputs = await asyncio.gather(*running)
        held = asyncio.create_task(generate(server, prompt, "held"))
        await asyncio.sleep(0.1)
        assert not held.done()
        await server.resume_generation()
        return report, outputs, await held

    report, outputs, held = asyncio.run(scenario())
    assert report["aborted_count"] == 6
    assert {o.stop_reason for o in outputs} == {"aborted"}
    assert held.stop_reason == "completed" and len(held.token_ids) == 6


def test_server_that_rejects_answers_new_requests_as_aborted(server, plain):
    async def scenario() -> Any:
        await server.abort_all_requests(reject_request=True)
        return await generate(server, plain.prompt("Task."))

    output = asyncio.run(scenario())
    assert (output.stop_reason, output.token_ids) == ("aborted", [])


@pytest.mark.parametrize("is_added", [True, False], ids=["running", "just being added"])
def test_sleep_waits_for_requests(server, plain, is_added):
    async def scenario() -> Any:
        running = asyncio.create_task(generate(server, plain.prompt("Task."), max_tokens=100))
        while not (server._generator.num_unfinished if is_added else server._replies):
            await asyncio.sleep(0)
        await server.sleep()
        assert not server._replies and server._generator._prefixes.num_tokens == 0
        await server.wake_up()
        return await asyncio.wait_for(running, 1)

    assert asyncio.run(scenario()).stop_reason == "completed"


def test_failed_step_fails_its_requests_and_the_server_lives_on(server, plain, monkeypatch):
    async def scenario() -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(server._generator, "_forward", lambda: 1 / 0)
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                await generate(server, plain.prompt("Task."))
        return await generate(server, plain.prompt("Task."))

    assert asyncio.run(scenario()).stop_reason == "completed"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty must be"),
        ({"min_p": 0.1}, "no sampling parameter 'min_p'"),
        ({"top_p": 0}, "top_p must be above 0"),
    ],
)
def test_sampling_parameters_that_the_engine_does_not_have_are_refused(server, plain, wrong, message):
    with pytest.raises(ValueError, match=message):
        asyncio.run(generate(server, plain.prompt("Task."), **wrong))


def test_reply_without_a_length_gets_what_is_left_of_the_recipes(rollout_config, model_config):
    from arpo_verl.engines.cpu.server import sampling_params

    def length(prompt_length: int, **params: Any) -> int:
        return sampling_params(params, rollout_config, model_config, prompt_length).max_tokens

    assert length(100) == 16
    assert length(520) == 8
    assert length(100, max_new_tokens=5) == 5
    assert length(8190, max_tokens=5) == 2
    with pytest.raises(ValueError, match="8192"):
        length(8192)


def test_weights_under_other_names_are_refused(server, trained):
    renamed = {name.replace("layers.0", "layers.9"): array for name, array in trained.items()}
    with pytest.raises(KeyError, match="missing .*layers.0"):
        asyncio.run(server.update_weights(renamed, global_steps=0))


def test_models_of_other_kinds_are_refused(model_config):
    from types import SimpleNamespace

    from arpo_verl.engines.cpu.model import load_model

    other = SimpleNamespace(hf_config=SimpleNamespace(model_type="llama"))
    with pytest.raises(ConfigError, match="qwen2_5_vl.*got 'llama'"):
        load_model(other, random_weights=True)


def test_engine_options_are_checked():
    from arpo_verl.engines.cpu.options import EngineOptions, engine_options

    assert engine_options({}) == engine_options({"transformers": {}}) == EngineOptions()
    assert engine_options({"transformers": {"max_batch_size": 3}}).max_batch_size == 3
    with pytest.raises(ConfigError, match="engine_kwargs.transformers.max_batch is not an option.*max_batch_size"):
        engine_options({"transformers": {"max_batch": 3}})
    for name in ("max_batch_size", "max_batch_tokens", "kv_cache_tokens", "num_threads"):
        with pytest.raises(ConfigError, match=rf"transformers\.{name} must be a positive integer, got 0"):
            engine_options({"transformers": {name: 0}})
