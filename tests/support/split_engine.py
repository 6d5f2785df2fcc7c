"""veRL's FSDP2 engine on two ranks, which are processes here and split each sequence: an update with and without shared
screenshots.

    ARPO_VERL_RUN=1 VERL_PLATFORM=cpu python -m support.split_engine FOLDER

writes FOLDER/alone.json and FOLDER/together.json. PyTorch stands in for flash-attn, which needs a GPU.
"""

import json
import multiprocessing
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

RANKS = 2
OVERRIDES = [
    f"actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size={RANKS}",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "data.mm_processor_kwargs={min_pixels:3136,max_pixels:25088}",
    "actor_rollout_ref.actor.fsdp_config.param_offload=false",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=false",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "actor_rollout_ref.actor.optim.lr=1e-3",
]


def attention(query, key, value, *_, softmax_scale=None, **__):
    """Of one row, causal; (1, T, heads, size)."""
    turned = (each.transpose(1, 2) for each in (query, key, value))
    return scaled_dot_product_attention(*turned, is_causal=True, scale=softmax_scale, enable_gqa=True).transpose(1, 2)


def attention_of_rows(q, k, v, cu_seqlens_q, softmax_scale=None, **_):
    """The same of rows behind each other, (T, heads, size): veRL's padding is one."""
    ends = cu_seqlens_q.tolist()
    parts = [[each[None, a:b] for each in (q, k, v)] for a, b in zip(ends, ends[1:], strict=False)]
    return torch.cat([attention(*part, softmax_scale=softmax_scale)[0] for part in parts])


def all_to_all(received, sent, group=None, **_):
    """Gloo has it for one tensor."""
    together = torch.stack(sent)
    arrived = torch.empty_like(together)
    dist.all_to_all_single(arrived, together, group=group)
    for one, other in zip(received, arrived, strict=True):
        one.copy_(other)


def stand_in():
    from verl.models.transformers import qwen2_vl

    dist.all_to_all = all_to_all
    qwen2_vl._flash_attention_forward, qwen2_vl.flash_attn_varlen_func = attention, attention_of_rows
    qwen2_vl._flash_supports_window_size = qwen2_vl._flash_supports_deterministic = False
    qwen2_vl._flash_use_top_left_mask = False
    qwen2_vl.fa_peft_integration_check = lambda *tensors, **_: tensors  # it would make bf16 of them


def prepare(folder):
    """The recipe, with a small policy that has weights, and two rows for it."""
    import gpu_update
    from transformers import AutoConfig, AutoModelForImageTextToText

    from arpo_verl.engines.footprint import KNOWN_MODELS
    from arpo_verl.plugin.model_inputs import ModelInputs
    from arpo_verl.plugin.recipe.footprint import read_run
    from arpo_verl.tools.cli.composing import compose_recipe

    model = gpu_update.small(KNOWN_MODELS["ByteDance-Seed/UI-TARS-1.5-7B"])
    path = gpu_update.write_policy(folder / "policy", model)
    overrides = ["data.train_files=none", "data.val_files=none", f"actor_rollout_ref.model.path={path}"]
    config = compose_recipe(gpu_update.ROOT / "recipes" / "osworld_full.yaml", overrides + OVERRIDES)
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(path)).save_pretrained(path)
    run = replace(read_run(config, model), max_screenshots=3, max_replies=3, instruction_tokens=20)
    inputs = ModelInputs(*gpu_update.load_processor(path), config.data.mm_processor_kwargs)
    return config, [gpu_update.make_row(inputs, run, 9, number) for number in range(2)]


def update(config, rows, is_shared):
    """Score and update once: what came out, with gradients and weights of the whole."""
    import gpu_update
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.dataset.dataset_utils import DatasetPadMode
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.utils.losses import ppo_loss

    gradients, encoded = {}, []

    class Engine(FSDPEngineWithLMHead):
        def optimizer_step(self):
            weights = self.module.named_parameters()
            gradients.update({name: weight.grad.full_tensor() for name, weight in weights if weight.grad is not None})
            return super().optimizer_step()

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    engine = Engine(model, actor.engine, actor.optim, actor.checkpoint)
    engine.initialize()
    visual = engine.module.model.visual
    assert "forward" in vars(visual)
    if not is_shared:
        del visual.forward
    visual.patch_embed.register_forward_hook(lambda _, given, __: encoded.append(len(given[0])))
    settings = {
        "use_remove_padding": True,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 1,
        "use_fused_kernels": False,
        "calculate_entropy": False,
        "temperature": 1.0,
        "pad_mode": DatasetPadMode.NO_PADDING,
    }
    torch.manual_seed(1)
    batch = gpu_update.make_batch(rows, settings)
    batch["old_log_probs"] = batch["old_log_probs"] * 0.1 - 7.6  # an untrained policy's, of 2,048 words
    with engine.eval_mode():
        log_probs = engine.infer_batch(batch.clone())["model_output"]["log_probs"].values()
    with engine.train_mode():
        output = engine.train_batch(batch, partial(ppo_loss, config=actor))
    weights = {name: weight.full_tensor().detach() for name, weight in engine.module.named_parameters()}
    found = {
        "patches encoded": encoded,
        "loss": output["loss"],
        "grad_norm": output["metrics"].get("grad_norm"),  # the first rank's alone
        "smallest gradient": min(gradients[name].abs().max().item() for name in gradients if "visual" in name),
    }
    return found, log_probs, gradients, weights


def apart(one, other):
    """The largest difference, in parts of the largest value."""
    assert one.keys() == other.keys()
    return max(((one[name] - other[name]).abs().max() / one[name].abs().max().clamp(min=1e-12)).item() for name in one)


def rank_of(number, folder, config, rows):
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=number, world_size=RANKS)
    (alone, *one), (together, *other) = (update(config, rows, is_shared) for is_shared in (False, True))
    together["log-probs apart"] = (one[0] - other[0]).abs().max().item()
    together["gradients apart"], together["weights apart"] = apart(one[1], other[1]), apart(one[2], other[2])
    if number == 0:
        for name, found in {"alone": alone, "together": together}.items():
            (folder / f"{name}.json").write_text(json.dumps(found, default=float))
    dist.destroy_process_group()


def main(folder):
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    import verl  # noqa: F401  loads the plugin

    stand_in()
    config, rows = prepare(folder)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_of, args=(number, folder, config, rows)) for number in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
