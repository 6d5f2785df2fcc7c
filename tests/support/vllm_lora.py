"""LoRA in veRL's worker of vLLM: `python vllm_lora.py POLICY`, by the Python of `make vllm`.

Two updates of the adapters that veRL's FSDP engine would make for docs/faq.md's options, each sent as veRL sends it.
Before, between and after them the engine samples replies to screenshots. Prints a line of JSON for each of the three:
how far its probabilities are from the trained model's, with and without its adapters. No Ray, no FSDP, no trainer.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl  # noqa: F401  # and with it what a CPU needs
from PIL import Image

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # `send` goes to the worker

from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

RANK, ALPHA, EXCLUDED = 8, 16, ".*visual.*"
TEXT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Press it.<|im_end|>\n<|im_start|>assistant\n"


def send(worker: Any, path: str) -> list[str]:
    """Load adapters as veRL's worker does; return the engine's modules that can have one."""
    weights, peft_config = pickle.loads(Path(path).read_bytes())
    worker.remove_lora(VLLM_LORA_INT_ID)
    worker._update_weights(weights, peft_config=peft_config, base_sync_done=True)
    return sorted(worker.model_runner.lora_manager._adapter_manager.modules)


class Trained:
    """The model with adapters, as `verl/workers/engine/fsdp/transformer_impl.py: _build_lora_module` makes it."""

    def __init__(self, policy: str) -> None:
        from peft import LoraConfig, TaskType, get_peft_model
        from transformers import AutoModelForImageTextToText
        from verl.utils.tokenizer import hf_processor

        self.processor = hf_processor(policy)
        model = AutoModelForImageTextToText.from_pretrained(policy, attn_implementation="sdpa", dtype=torch.float32)
        config = LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=RANK,
            lora_alpha=ALPHA,
            target_modules="all-linear",
            exclude_modules=EXCLUDED,
            bias="none",
        )
        self.model = get_peft_model(model, config)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-2)
        self.prompt = self.processor.tokenizer.encode(TEXT, add_special_tokens=False)

    def log_probs(self, image: Image.Image, reply: list[int]) -> torch.Tensor:
        inputs = dict(self.processor.image_processor(images=[image], return_tensors="pt"))
        visual, image_id = int(inputs["image_grid_thw"].prod()) // 4, self.processor.image_token_id
        prompt = [token for each in self.prompt for token in [each] * (visual if each == image_id else 1)]
        ids = torch.tensor([prompt + reply])
        positions, _ = self.processor.get_rope_index(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            image_grid_thw=inputs["image_grid_thw"],
            mm_token_type_ids=(ids == image_id).long(),
        )
        logits = self.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions, **inputs
        ).logits[0]
        return logits.log_softmax(-1)[range(len(prompt) - 1, ids.shape[1] - 1), reply]

    def update(self, loss: torch.Tensor, path: str) -> None:
        from peft.utils.save_and_load import get_peft_model_state_dict

        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        weights = [(name, tensor.detach().clone()) for name, tensor in get_peft_model_state_dict(self.model).items()]
        Path(path).write_bytes(pickle.dumps((weights, asdict(self.model.peft_config["default"]))))


async def main(policy: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=policy,
            dtype="float32",
            enforce_eager=True,
            distributed_executor_backend="mp",
            max_model_len=1024,
            max_num_seqs=8,
            max_num_batched_tokens=1024,
            kv_cache_memory_bytes=64 << 20,
            block_size=32,
            limit_mm_per_prompt={"image": 2, "video": 0},
            logprobs_mode="raw_logprobs",
            enable_lora=True,
            max_loras=1,
            max_lora_rank=RANK,
            worker_extension_cls="verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
        )
    )
    trained = Trained(policy)
    noise = np.random.default_rng(0)
    small = [noise.integers(0, 255, (12, 16, 3), dtype=np.uint8) for _ in range(4)]
    images = [Image.fromarray(pixels).resize((640, 480), Image.Resampling.NEAREST) for pixels in small]

    async def ask(name: str, image: Image.Image, lora: LoRARequest | None) -> tuple[list[int], torch.Tensor]:
        prompt = {"prompt_token_ids": trained.prompt, "multi_modal_data": {"image": [image]}}
        sampling = SamplingParams(temperature=1, max_tokens=24, ignore_eos=True, logprobs=0)
        async for output in engine.generate(prompt, sampling, name, lora_request=lora):
            reply = output.outputs[0]
        chosen = [each[token].logprob for token, each in zip(reply.token_ids, reply.logprobs, strict=True)]
        return list(reply.token_ids), torch.tensor(chosen)

    lora: LoRARequest | None = None
    modules: list[str] = []
    for step in range(3):
        answers = await asyncio.gather(*[ask(f"{step}-{number}", image, lora) for number, image in enumerate(images)])
        ours = [trained.log_probs(image, reply) for image, (reply, _) in zip(images, answers, strict=True)]
        with torch.no_grad(), trained.model.disable_adapter():
            without = [trained.log_probs(image, reply) for image, (reply, _) in zip(images, answers, strict=True)]
        figures = {
            name: max(
                (each.detach().exp() - engines.exp()).abs().max().item()
                for each, (_, engines) in zip(found, answers, strict=True)
            )
            for name, found in (("probs_diff_max", ours), ("without_adapters", without))
        }
        print(json.dumps({**figures, "modules": modules}), flush=True)
        if step == 2:
            break
        with tempfile.NamedTemporaryFile() as file:
            trained.update(-torch.stack([each.mean() for each in ours]).sum(), file.name)
            modules = (await engine.collective_rpc(send, args=(file.name,)))[0]
        for reset in (engine.reset_prefix_cache, engine.reset_mm_cache, engine.reset_encoder_cache):
            await reset()
        lora = LoRARequest(lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
