"""EasyR1's worker without a GPU: its own actor, loss and gradients on a small model, and replies by Transformers.

The stock worker needs CUDA, NCCL, flash-attention and vLLM. This one keeps what is EasyR1's and needs none of them: the
actor that scores and updates (`DataParallelPPOActor`), and the cache of pixels (`_process_multi_modal_inputs`).
"""

import io
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from transformers import AutoModelForImageTextToText, GenerationConfig
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.base.worker import WorkerMeta
from verl.utils import torch_functional as VF
from verl.utils.tokenizer import get_processor, get_tokenizer
from verl.workers.actor.dp_actor import DataParallelPPOActor
from verl.workers.fsdp_workers import FSDPWorker

LOG = "EASYR1_TEST_LOG"
"""Names a file that gets a line for each call."""
TEMPERATURES = "EASYR1_TEST_TEMPERATURES"
"""The sampling temperature of each training step of this process, as `0.2,4`: at 4 no reply parses, so all episodes
fail. Validation has its own, `worker.rollout.val_override_config.temperature`."""


class CpuBase(Worker):
    """EasyR1's base class, which asks for the name of a GPU."""

    def __init__(self, **_):
        ranks = {f"_{key.lower()}": os.environ.get(key) for key in ("MASTER_ADDR", "MASTER_PORT")}
        self._configure_with_meta(WorkerMeta({**ranks, "_rank": 0, "_world_size": 1, "_local_rank": 0}))


class CpuWorker(CpuBase):
    def __init__(self, config, role, **kwargs):
        super().__init__(**kwargs)
        self.config, self._cache, self._steps = config, {}, 0
        self._temperatures = [float(text) for text in os.environ.get(TEMPERATURES, "").split(",") if text]
        if not dist.is_initialized():
            store = dist.FileStore(f"/tmp/easyr1-{os.getpid()}-{time.time_ns()}", 1)
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        config.actor.global_batch_size *= config.rollout.n  # as the stock worker
        config.actor.global_batch_size_per_device = config.actor.global_batch_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        path, actor = self.config.actor.model.model_path, self.config.actor
        self.tokenizer, self.processor = get_tokenizer(path), get_processor(path)
        self.generation = GenerationConfig.from_pretrained(path)
        torch.manual_seed(self.config.rollout.seed)
        self.model = AutoModelForImageTextToText.from_pretrained(
            path, torch_dtype=torch.float32, attn_implementation="sdpa"
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=actor.optim.lr)
        self.actor = DataParallelPPOActor(actor, self.model, self.optimizer)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def prepare_rollout_engine(self):
        left = self._temperatures[self._steps :]  # none behind the last step, where validation is all that is played
        self._temperature = left[0] if left else self.config.rollout.temperature

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def release_rollout_engine(self):
        self._log("release", weights=self._weights())

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def generate_sequences(self, prompts):
        ends, padding = self.generation.eos_token_id, self.tokenizer.pad_token_id
        prompts.meta_info |= {"eos_token_id": ends, "pad_token_id": padding}
        raw, shown = prompts.non_tensor_batch["raw_prompt_ids"], prompts.non_tensor_batch["multi_modal_data"]
        self._log("generate", prompts=len(raw), images=[len(one["images"]) for one in shown], meta=_plain(prompts))
        asked = {"temperature": self._temperature, **prompts.meta_info}
        replies = [self._reply(ids, one["images"], asked) for ids, one in zip(raw, shown, strict=True)]
        responses = VF.pad_2d_list_to_length(replies, padding, max_length=self.config.rollout.response_length)
        return DataProto.from_dict(tensors={"responses": responses}, meta_info=prompts.meta_info)

    @torch.no_grad()
    def _reply(self, prompt_ids, files, asked):
        """One reply, from a prompt with one placeholder an image, as vLLM takes it."""
        images = [Image.open(io.BytesIO(file)) for file in files]
        assert list(prompt_ids).count(self.model.config.image_token_id) == len(images)
        pixels = self.processor.image_processor(images=images, return_tensors="pt")
        counts = iter((pixels["image_grid_thw"].prod(-1) // self.processor.image_processor.merge_size**2).tolist())
        image = self.model.config.image_token_id
        ids = [id for one in prompt_ids for id in ([one] * (next(counts) if one == image else 1))]
        self.model.eval()
        whole = self.model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            **pixels,
            do_sample=True,
            temperature=asked["temperature"],
            top_p=1.0,
            top_k=0,
            max_new_tokens=asked["max_tokens"],
            bad_words_ids=[[banned] for banned in asked["logit_bias"]],
        )
        return whole[0, len(ids) :].tolist()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_probs(self, data):
        FSDPWorker._process_multi_modal_inputs(self, data)
        inputs = data.non_tensor_batch["multi_modal_inputs"]
        patches = [int(one["pixel_values"].shape[0]) if one else 0 for one in inputs]
        self._log("log_probs", uids=list(data.non_tensor_batch["uid"]), patches=patches)
        data.meta_info["temperature"] = self.config.rollout.temperature
        old = self.actor.compute_log_prob(data)
        return DataProto.from_dict(
            tensors={"old_log_probs": old}, meta_info={"temperature": self.config.rollout.temperature}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, data):
        FSDPWorker._process_multi_modal_inputs(self, data)
        before = self._weights()
        self._steps += 1
        metrics = self.actor.update_policy(data)
        rows = {name: data.batch[name] for name in ("advantages", "response_mask", "token_level_scores")}
        self._log(
            "update",
            uids=list(data.non_tensor_batch["uid"]),
            advantages=rows["advantages"].abs().amax(-1).mul(rows["advantages"].sum(-1).sign()).tolist(),
            replied=rows["response_mask"].sum(-1).tolist(),
            scores=rows["token_level_scores"].sum(-1).tolist(),
            moved=abs(self._weights() - before),
        )
        metrics |= {"actor/lr": self.config.actor.optim.lr, "perf/mfu_actor": 0.0}
        return DataProto(non_tensor_batch={name: np.atleast_1d(np.array(value)) for name, value in metrics.items()})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path, save_model_only=False):
        Path(path).mkdir(parents=True, exist_ok=True)
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, f"{path}/state.pt")
        self._log("save", path=path, weights=self._weights())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path):
        state = torch.load(f"{path}/state.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._log("load", path=path, weights=self._weights())

    def _weights(self):
        return sum(float(values.double().abs().sum()) for values in self.model.state_dict().values())

    def _log(self, call, **values):
        with open(os.environ[LOG], "a") as file:
            file.write(json.dumps({"call": call, **values}) + "\n")


def _plain(prompts):
    return {name: value for name, value in prompts.meta_info.items() if isinstance(value, (int, float, type(None)))}
