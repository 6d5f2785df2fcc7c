"""veRL still does in silence what `silent.py` refuses; a test that fails here shows which check can go."""

import re
from pathlib import Path

import pytest
from support.composed import compose_recipe

from arpo_verl.plugin.recipe import silent
from arpo_verl.plugin.recipe.options import Recipe
from arpo_verl.plugin.recipe.silent import check_silent
from arpo_verl.versions import verl_folder

FSDP = "actor_rollout_ref.actor.fsdp_config"
SOURCES = re.findall(r"# ([\w/]+\.py) \| (.+)", Path(silent.__file__).read_text(encoding="utf-8"))


def check(name: str, *overrides: str) -> None:
    check_silent(Recipe(compose_recipe(name, "data.train_files=t.json", "data.val_files=t.json", *overrides)))


def test_verl_still_has_each_line_that_a_check_rests_on():
    assert len(SOURCES) > 20
    gone = [line for file, line in SOURCES if line not in (verl_folder() / file).read_text("utf-8")]
    assert not gone, "look whether its check can go"


def test_nothing_in_verl_reads_whether_to_freeze_the_image_encoder():
    readers = [path.name for path in verl_folder().rglob("*.py") if "freeze_vision_tower" in path.read_text("utf-8")]
    assert readers == ["actor.py"], "something besides the config's own class reads it now: drop the refusal"


@pytest.mark.parametrize(("excluded", "is_adapted"), [(None, True), (".*visual.*", False)])
def test_all_linear_gives_the_image_encoder_an_adapter_unless_it_is_excluded(model_path, excluded, is_adapted):
    peft = pytest.importorskip("peft")
    from transformers import AutoConfig, AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(model_path))
    config = peft.LoraConfig(r=8, target_modules="all-linear", exclude_modules=excluded, task_type="CAUSAL_LM")
    names = [name for name, weights in peft.get_peft_model(model, config).named_parameters() if weights.requires_grad]
    assert any("language_model" in name for name in names)
    assert any(".visual." in name for name in names) == is_adapted


class TestOffloadedWeights:
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
