"""Give the generator veRL's interface of a rollout server, in a Ray actor of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from PIL.Image import Image
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tokenizer import normalize_token_ids
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.utils import get_max_position_embeddings

from arpo_verl.engines.cpu.generation.generator import Generator
from arpo_verl.engines.cpu.generation.types import GenerationRequest, GenerationResult, SamplingParams
from arpo_verl.engines.cpu.model import banned_token_ids, eos_token_ids, load_model, load_weights
from arpo_verl.engines.cpu.options import engine_options

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TAKEN = ("temperature", "top_p", "top_k", "ignore_eos", "seed", "stop_token_ids")
_LENGTH = ("max_tokens", "max_new_tokens")
# veRL sends these with every request; this engine always returns log-probabilities and penalises nothing.
_GIVEN = {"logprobs": (True, False, None, 0), "repetition_penalty": (1.0, None)}


class TransformersServer:
    """One replica's server. Ray runs it as an actor; veRL's clients and managers call its methods.

    All use of the model runs in one thread of its own: the event loop stays free for requests that arrive
    meanwhile, and torch keeps one pool of threads.

    Args:
        config: veRL's rollout config.
        model_config: veRL's model config.
        replica_rank: this replica's rank, which is part of its seed.
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        self.config = omega_conf_to_dataclass(config)
        self.model_config: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        options = engine_options(self.config.engine_kwargs)
        self._executor = ThreadPoolExecutor(1, "generator", torch.set_num_threads, (options.num_threads,))
        model = load_model(self.model_config, random_weights=self.config.load_format == "dummy")
        self._generator = Generator(
            model,
            self.model_config.processor,
            eos_token_ids=eos_token_ids(self.model_config),
            banned_token_ids=banned_token_ids(self.model_config),
            options=replace(options, prefix_reuse=options.prefix_reuse and self.config.enable_prefix_caching),
            seed=self.config.seed + replica_rank,
        )
        self._global_steps: int | None = None
        self._replies: dict[str, asyncio.Future[GenerationResult]] = {}
        self._loop_task: asyncio.Task[None] | None = None
        self._gate = asyncio.Event()
        self._gate.set()
        self._rejecting = False

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Image] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> TokenOutput:
        """Answer one prompt, which joins the running batch at its next token."""
        if video_data or audio_data:
            raise ValueError("the rollout engine `transformers` takes images only, got video or audio; use vllm")
        request = self._request(prompt_ids, sampling_params, request_id, image_data, mm_processor_kwargs)
        while not self._gate.is_set():
            if self._rejecting:
                return self._output(GenerationResult(request_id, (), (), "abort"))
            await self._gate.wait()
        return self._output(await self._enqueue(request))

    async def update_weights(self, weights: Mapping[str, np.ndarray], global_steps: int | None) -> None:
        """Take over the trainer's weights, and drop all that was computed with the old ones."""

        def load() -> None:
            load_weights(self._generator.model, weights)
            self._generator.weights_changed()

        await self._in_thread(load)
        if global_steps is not None:
            self._global_steps = global_steps

    async def set_global_steps(self, global_steps: int) -> None:
        self._global_steps = global_steps

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Do nothing: weights always stay in host memory."""

    async def sleep(self) -> None:
        """Finish the running requests, then drop the caches: the trainer needs the memory more."""
        await self.wait_for_requests_to_drain()
        await self.clear_kv_cache()

    async def clear_kv_cache(self) -> None:
        await self._in_thread(self._generator.clear_cache)

    async def release_kv_cache(self) -> None:
        await self.clear_kv_cache()

    async def resume_kv_cache(self) -> None:
        """Do nothing: caches are made at need."""

    async def wait_for_requests_to_drain(self) -> None:
        # This does not wait for the loop's task: a request that is just being added has none yet.
        while self._replies:
            await asyncio.wait(list(self._replies.values()))

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Cut off all requests and hold back new ones until `resume_generation`.

        Args:
            reset_prefix_cache: drop the caches too.
            reject_request: answer new requests as aborted instead of holding them back.
        """
        self._gate.clear()
        self._rejecting = reject_request
        aborted = await self._abort(None)
        if reset_prefix_cache:
            await self.clear_kv_cache()
        return {"aborted_count": len(aborted), "request_ids": aborted}

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Cut off one request."""
        aborted = await self._abort({request_id})
        return {"aborted": bool(aborted), "request_id": request_id}

    async def resume_generation(self) -> None:
        self._rejecting = False
        self._gate.set()

    async def start_profile(self, **_: Any) -> None:
        """Do nothing: the engine has no profiler."""

    async def stop_profile(self) -> None:
        """Do nothing: the engine has no profiler."""

    def _request(
        self,
        prompt_ids: list[int],
        params: Mapping[str, Any],
        request_id: str,
        image_data: list[Image] | None,
        mm_processor_kwargs: Mapping[str, Any] | None,
    ) -> GenerationRequest:
        prompt_ids = normalize_token_ids(prompt_ids)
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=tuple(prompt_ids),
            sampling=sampling_params(params, self.config, self.model_config, len(prompt_ids)),
            images=tuple(image_data or ()),
            processor_kwargs=mm_processor_kwargs or {},
        )

    async def _enqueue(self, request: GenerationRequest) -> GenerationResult:
        if request.request_id in self._replies:
            raise ValueError(f"request_id must be unique among running requests, got {request.request_id!r} twice")
        reply: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self._replies[request.request_id] = reply
        try:
            await self._in_thread(lambda: self._generator.add(request))
        except Exception:
            self._replies.pop(request.request_id).cancel()
            raise
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._generate_all())
        return await reply

    async def _generate_all(self) -> None:
        """Decode until no request is left. An error fails all requests in flight, but the server goes on."""
        try:
            while self._generator.num_unfinished:
                self._deliver(await self._in_thread(self._generator.decode))
        except Exception as error:
            logger.exception("generation failed, and all running requests with it")
            self._generator.abort()
            for reply in self._replies.values():
                reply.set_exception(RuntimeError(f"generation failed: {error!r}"))
            self._replies.clear()

    async def _abort(self, request_ids: set[str] | None) -> list[str]:
        results = await self._in_thread(lambda: self._generator.abort(request_ids))
        self._deliver(results)
        return [result.request_id for result in results]

    def _deliver(self, results: list[GenerationResult]) -> None:
        for result in results:
            reply = self._replies.pop(result.request_id)
            if not reply.done():
                reply.set_result(result)

    def _output(self, result: GenerationResult) -> TokenOutput:
        return TokenOutput(
            token_ids=list(result.token_ids),
            log_probs=list(result.log_probs),
            stop_reason="aborted" if result.finish_reason == "abort" else "completed",
            extra_fields={"global_steps": self._global_steps, "num_cached_tokens": result.num_cached_tokens},
        )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)


def sampling_params(
    params: Mapping[str, Any], config: RolloutConfig, model_config: HFModelConfig, prompt_length: int
) -> SamplingParams:
    """Build the generator's parameters for one request.

    A request without a length gets what is left of the recipe's lengths, as with veRL's vLLM server.

    Raises:
        ValueError: this engine does not have a parameter, or the prompt leaves no room for a reply.
    """
    for name, value in params.items():
        if name in _GIVEN and value not in _GIVEN[name]:
            raise ValueError(
                f"{name} must be one of {_GIVEN[name]} for the rollout engine `transformers`, got {value!r}"
            )
        if name not in (*_TAKEN, *_LENGTH, *_GIVEN):
            known = ", ".join((*_TAKEN, *_LENGTH, *_GIVEN))
            raise ValueError(f"the rollout engine `transformers` has no sampling parameter {name!r}; it has {known}")
    room = (config.max_model_len or get_max_position_embeddings(model_config.hf_config)) - prompt_length
    if room < 1:
        raise ValueError(
            f"a prompt of {prompt_length} tokens fills the model's context; shorten it or raise max_model_len"
        )
    wanted = next((params[name] for name in _LENGTH if params.get(name) is not None), None)
    if wanted is None:
        wanted = min(config.response_length, config.prompt_length + config.response_length - prompt_length)
    taken = {name: params[name] for name in _TAKEN if params.get(name) is not None}
    taken["stop_token_ids"] = tuple(taken.get("stop_token_ids", ()))
    taken.setdefault("ignore_eos", config.ignore_eos)
    return SamplingParams(max_tokens=max(1, min(wanted, room)), **taken)
