"""Ranks of a split sequence, each a process here: what they make of some images with each encoding its share, beside
what one makes of all.

    python -m support.split_sequence FOLDER

writes FOLDER/RANK.json: `family case` to the figures of `compare`.
"""

import contextlib
import json
import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist

RANKS = 4
CASES = {
    "4 images over 4": ([(1, 4, 4)] * 4, 4),
    "3 images over 4": ([(1, 4, 6)] * 3, 4),
    "1 image over 2": ([(1, 4, 4)], 2),
    "5 unequal ones over 2": ([(1, 4, 4), (1, 8, 6), (2, 4, 4), (1, 4, 8), (1, 6, 4)], 2),
    "no image over 2": ([], 2),
}
VISION = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
TEXT = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "pad_token_id": 0}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4}
IMAGE = 1


def build(family):
    """A tiny model with gradient checkpointing, as veRL's engine adapts it to a sequence that is split."""
    from transformers import AutoConfig, AutoModelForImageTextToText
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    vision = VISION | {"fullatt_block_indexes": [1]} if family == "qwen2_5_vl" else VISION
    vision = vision | {"deepstack_visual_indexes": [0]} if family == "qwen3_vl" else vision
    ids = {"image_token_id": IMAGE, "video_token_id": 2, "vision_start_token_id": 3, "vision_end_token_id": 4}
    config = AutoConfig.for_model(family, text_config=TEXT | HEADS, vision_config=vision, **ids)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).double()
    apply_monkey_patch(model=model, ulysses_sp_size=2)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def losses(model, grids, ranks):
    """The sum over each rank's part of the sequence, of veRL's own embeddings."""
    from verl.models.transformers import qwen2_vl, qwen3_vl

    ids = [5]
    for frames, height, width in grids:
        ids += [IMAGE] * (frames * height * width // 4) + [6, 7]
    ids = torch.tensor([ids + [8] * (-len(ids) % ranks)])
    draw = torch.Generator().manual_seed(1)
    grid = torch.tensor(grids) if grids else None
    side = model.config.vision_config.patch_size
    patches = sum(map(lambda each: each[0] * each[1] * each[2], grids))
    pixels = torch.randn(patches, 6 * side**2, generator=draw, dtype=torch.float64) if grids else None
    of_family = qwen2_vl if model.config.model_type == "qwen2_5_vl" else qwen3_vl
    made = of_family._get_input_embeds(model.model, ids, None, pixels, None, grid)
    made = made if isinstance(made, dict) else {"inputs_embeds": made[0]}
    weights = torch.randn(made["inputs_embeds"].shape, generator=draw, dtype=torch.float64)
    tokens = (made["inputs_embeds"] * weights).sin().sum(-1)[0]
    is_image = ids[0] == IMAGE
    for features in made.get("deepstack_visual_embeds") or []:
        tokens = tokens.masked_scatter(is_image, tokens[is_image] + (features * weights[0, is_image]).sum(-1))
    return made["inputs_embeds"].detach(), [part.sum() for part in tokens.chunk(ranks)]


@contextlib.contextmanager
def counted(model):
    """Count what happens: patches that are encoded, a call each, and calls of the two exchanges."""
    from arpo_verl.plugin import shared_encoder

    seen = {"encoded": [], "gathers": 0, "reductions": 0}
    upstream = shared_encoder.dist

    class Counting:
        def __getattr__(self, name):
            seen["gathers"] += name == "all_gather_into_tensor"
            seen["reductions"] += name == "reduce_scatter_tensor"
            return getattr(upstream, name)

    hook = model.model.visual.patch_embed.register_forward_hook(
        lambda _, given, __: seen["encoded"].append(len(given[0]))
    )
    shared_encoder.dist = Counting()
    yield seen
    shared_encoder.dist = upstream
    hook.remove()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def compare(model, grids, ranks, group):
    """How far features and gradients with sharing are from those without, and what was counted."""
    from verl.utils.ulysses import set_ulysses_sequence_parallel_group

    embeddings, of_ranks = losses(model, grids, ranks)
    alone = gradients(model, sum(of_ranks))
    set_ulysses_sequence_parallel_group(group)
    with counted(model) as seen:
        shared, of_ranks = losses(model, grids, ranks)
        together = gradients(model, of_ranks[dist.get_rank(group)])
    set_ulysses_sequence_parallel_group(None)
    assert alone.keys() == together.keys()
    for gradient in together.values():
        dist.all_reduce(gradient, group=group)
    encoder = [name for name in alone if "visual" in name]
    apart = [(alone[name] - together[name]).abs().max().item() for name in alone]
    return {
        **seen,
        "parameters": len(encoder),
        "smallest gradient": min(alone[name].abs().max().item() for name in encoder),
        "features apart": (embeddings - shared).abs().max().item(),
        "gradients apart": max(apart),
    }


def rank_of(number, folder, models):
    dist.init_process_group("gloo", f"file://{folder}/store", rank=number, world_size=RANKS)
    groups = {2: dist.new_group([0, 1]), 4: dist.new_group()}
    found = {}
    for family, model in models.items():
        for case, (grids, ranks) in CASES.items():
            if number < ranks and (grids or family == "qwen3_vl"):  # veRL fails on Qwen2.5-VL's rows of text alone
                found[f"{family} {case}"] = compare(model, grids, ranks, groups[ranks])
    (Path(folder) / f"{number}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(folder):
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    import verl  # noqa: F401  loads the plugin

    models = {family: build(family) for family in ("qwen2_5_vl", "qwen3_vl")}
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_of, args=(number, folder, models)) for number in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    main(sys.argv[1])
