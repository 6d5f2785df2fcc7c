"""Options of veRL's that cannot work together are refused with the way out, and veRL still needs the refusal."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from support.composed import compose_recipe

from arpo_verl.errors import ConfigError
from arpo_verl.footprint import KNOWN_MODELS
from arpo_verl.plugin.recipe.combinations import LOGGERS, RULES
from arpo_verl.plugin.recipe.rules import Recipe, check_rules
from arpo_verl.versions import verl_folder

UI_TARS = KNOWN_MODELS["ByteDance-Seed/UI-TARS-1.5-7B"]
FSDP = "actor_rollout_ref.actor.fsdp_config"


def check(name: str, *overrides: str, model=UI_TARS) -> None:
    config = compose_recipe(name, "data.train_files=t.json", "data.val_files=t.json", *overrides)
    check_rules(RULES, Recipe(config, model))


@pytest.mark.parametrize("source", sorted({rule.source for rule in RULES if rule.source}))
def test_verl_still_has_the_line_that_a_rule_rests_on(source):
    file, line = source.split(" | ")
    assert line in (verl_folder() / file).read_text("utf-8"), "look whether the rule can go"


def test_a_rule_says_why_and_what_to_set():
    assert all(rule.expected for rule in RULES)
    silent = [rule.option for rule in RULES if not rule.remedy and not rule.known]
    assert all("ulysses_sequence_parallel_size" in option for option in silent), "these list what can be set"


class TestOffloadedWeights:
    def test_are_refused_with_several_updates_a_step(self):
        for option in ("param_offload", "offload_policy"):
            with pytest.raises(ConfigError, match=f"{option} must be false .* would be lost.*set it to false"):
                check("osworld_full_async", f"{FSDP}.{option}=true")

    @pytest.mark.parametrize(
        "way_out",
        [
            ("actor_rollout_ref.actor.strategy=fsdp",),
            ("trainer.v1.separate_async.parameter_sync_step=1", "data.train_batch_size=8"),
            ("trainer.v1.trainer_mode=colocate_async", "trainer.nnodes=2", "actor_rollout_ref.rollout.nnodes=0"),
        ],
    )
    def test_may_be_where_nothing_is_saved_or_copies_are_made(self, way_out):
        check("osworld_full_async", f"{FSDP}.param_offload=true", *way_out)

    def test_verl_still_saves_no_copy_of_what_lies_in_host_memory(self, tmp_path):
        """Four updates of +1 with the trainer's own saves and restores between them end at 1: three are lost."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from verl.utils.fsdp_utils import fsdp2_sharded_load_from_cpu, fsdp2_sharded_save_to_cpu

        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            layer = torch.nn.Linear(2, 2, bias=False)
            torch.nn.init.zeros_(layer.weight)
            fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))

            def to_the_gpu_or_back() -> None:
                # What offloading does: the same values in a storage of their own.
                layer.weight._local_tensor = layer.weight._local_tensor.clone()

            saved = {}
            for update in range(4):
                saved[update] = fsdp2_sharded_save_to_cpu(layer)
                if update:
                    fsdp2_sharded_load_from_cpu(layer, *saved[0])
                    to_the_gpu_or_back()  # scores by the older weights
                    fsdp2_sharded_load_from_cpu(layer, *saved[update])
                to_the_gpu_or_back()
                with torch.no_grad():
                    layer.weight._local_tensor += 1
                to_the_gpu_or_back()
            end = layer.weight._local_tensor[0, 0].item()
        finally:
            torch.distributed.destroy_process_group()
        assert end == 1.0, "veRL copies now: drop the refusal, and param_offload: false in osworld_full_async"


class TestFusedKernels:
    def test_are_refused_under_fsdp2_with_what_saves_memory_instead(self):
        fused = "actor_rollout_ref.model.use_fused_kernels=true"
        with pytest.raises(ConfigError, match="use_fused_kernels must be false.*_from_logits_with_chunking=true"):
            check("osworld_full", fused)
        check("osworld_full", fused, "actor_rollout_ref.actor.strategy=fsdp")
        check("osworld_full", fused, model=dataclasses.replace(UI_TARS, tied_embeddings=True))

    def test_pass_with_qwen3_vl_whose_forward_gathers_the_matrix_but_not_for_triton(self):
        fused, qwen3 = "actor_rollout_ref.model.use_fused_kernels=true", KNOWN_MODELS["Qwen/Qwen3-VL-8B-Instruct"]
        check("osworld_full", fused, model=qwen3)
        with pytest.raises(ConfigError, match="use_fused_kernels must be false"):
            check(
                "osworld_full", fused, "actor_rollout_ref.model.fused_kernel_options.impl_backend=triton", model=qwen3
            )
        gathers = "vocab_weights = vocab_weights.full_tensor()"
        for family, gathered in (("qwen3_vl", True), ("qwen2_vl", False)):
            source = (verl_folder() / "models" / "transformers" / f"{family}.py").read_text("utf-8")
            assert (gathers in source) == gathered

    @pytest.mark.release
    def test_verl_still_multiplies_by_a_sharded_matrix_unless_it_is_the_inputs_own(self, model_path):
        """The real forward in a process of its own: the patch is of the model's class."""
        code = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForImageTextToText
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.fsdp_utils import MixedPrecisionPolicy, apply_fsdp2
for tied in (False, True):
    config = AutoConfig.from_pretrained(sys.argv[1], attn_implementation="sdpa")
    config.tie_word_embeddings = tied
    model = AutoModelForImageTextToText.from_config(config)
    apply_monkey_patch(
        model, use_remove_padding=False, ulysses_sp_size=1, use_fused_kernels=True, fused_kernels_backend="torch"
    )
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=True)
    mesh = init_device_mesh("cpu", (1,))
    kwargs = {"mesh": mesh, "mp_policy": policy, "offload_policy": None, "reshard_after_forward": True}
    apply_fsdp2(model, kwargs, {"wrap_policy": {}})
    ids = torch.full((1, 16), 5)
    ids[0, 3:7] = config.image_token_id
    inputs = {"pixel_values": torch.randn(16, 3 * 2 * 14 * 14), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    places = torch.arange(16).view(1, 1, -1).expand(4, 1, -1)
    try:
        mask = torch.ones_like(ids)
        model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False, temperature=1.0,
              return_dict=True, **inputs)
        print("RESULT", tied, "works")
    except RuntimeError as error:
        print("RESULT", tied, "mixed torch.Tensor and DTensor" in str(error) or error)
"""
        command = [sys.executable, "-c", code, model_path, str(Path(model_path) / "store")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        lines = [line for line in result.stdout.splitlines() if line.startswith("RESULT")]
        assert lines == ["RESULT False True", "RESULT True works"], result.stderr[-2000:]


class TestSequenceParallel:
    @pytest.mark.parametrize("size", [1, 2, 4])
    def test_sizes_that_split_heads_and_gpus_pass(self, size):
        check("osworld_full", f"{FSDP}.ulysses_sequence_parallel_size={size}")

    @pytest.mark.parametrize("size", [7, 8, 28])
    def test_others_are_refused_with_those_that_do(self, size):
        with pytest.raises(ConfigError, match="must be one of 1, 2, 4, .* 28 attention heads and 4 key-value heads"):
            check("osworld_full", f"{FSDP}.ulysses_sequence_parallel_size={size}")

    def test_another_policy_may_have_others(self):
        qwen3 = KNOWN_MODELS["Qwen/Qwen3-VL-8B-Instruct"]
        check("osworld_full", f"{FSDP}.ulysses_sequence_parallel_size=8", model=qwen3)

    def test_it_needs_sequences_without_padding(self):
        with pytest.raises(ConfigError, match="use_remove_padding must be true"):
            check("osworld_full", "actor_rollout_ref.model.use_remove_padding=false")

    def test_verl_still_asks_for_the_same(self):
        from verl.models.transformers.monkey_patch import apply_monkey_patch

        source = inspect.getsource(apply_monkey_patch)
        assert "assert num_attention_heads % ulysses_sp_size == 0" in source
        assert "num_key_value_heads % ulysses_sp_size == 0 or ulysses_sp_size % num_key_value_heads == 0" in source


def test_freezing_the_image_encoder_is_refused_since_nothing_reads_it():
    with pytest.raises(ConfigError, match="freeze_vision_tower must be false: veRL"):
        check("osworld_full", "actor_rollout_ref.actor.freeze_vision_tower=true")
    import verl

    package = Path(verl.__file__).parent
    readers = [path.name for path in package.rglob("*.py") if "freeze_vision_tower" in path.read_text("utf-8")]
    assert readers == ["actor.py"], "something besides the config's own class reads it now: drop the refusal"


def test_the_loggers_are_verls():
    from verl.utils.tracking import Tracking

    assert {*Tracking.supported_backend, "tracking"} == set(LOGGERS)  # an older name that veRL still takes
