"""The stock trainer with a user's own veRL configuration, from a folder of the user's: two steps with a replay."""

import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from trainer_run import read_steps

TASKS = "[families:training:22:1,families:training:39:1,families:training:70:1,families:training:87:1]"

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

# What a small policy, its desktops and a CPU need.
VALUES = """
gui_agent.model_family=small gui_agent.context=window gui_agent.max_screenshots=1 gui_agent.max_reply_tokens=48
environment.provider=embedded environment.screen_size=[448,336] data.max_prompt_length=512 data.max_response_length=256
data.train_batch_size=8 data.tasks.repeat=2 trainer.total_training_steps=2 trainer.total_epochs=2
trainer.device=cpu trainer.n_gpus_per_node=1 trainer.val_before_train=false trainer.test_freq=-1
ray_kwargs.ray_init.address=local ray_kwargs.ray_init.num_gpus=1 ray_kwargs.ray_init.num_cpus=16
ray_kwargs.ray_init.include_dashboard=false transfer_queue.backend.SimpleStorage.num_data_storage_units=1
actor_rollout_ref.model.use_remove_padding=false actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.use_torch_compile=false
actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
actor_rollout_ref.actor.fsdp_config.model_dtype=fp32 actor_rollout_ref.actor.fsdp_config.dtype=float32
actor_rollout_ref.actor.fsdp_config.use_torch_compile=false actor_rollout_ref.rollout.name=transformers
actor_rollout_ref.rollout.dtype=float32 actor_rollout_ref.rollout.n=2 actor_rollout_ref.rollout.agent.num_workers=1
actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1
""".split()
PLUGINS = """
actor_rollout_ref.rollout.agent.default_agent_loop=gui_agent algorithm.adv_estimator=replay_grpo
+actor_rollout_ref.rollout.agent.agent_loop_manager_class=arpo_verl.plugin.loop_manager.GuiAgentLoopManager
data.custom_cls.path=pkg://arpo_verl.plugin.dataset data.custom_cls.name=TaskDataset data.val_max_samples=0
trainer.v1.sampler.custom_sampler.path=pkg://arpo_verl.plugin.sampler
trainer.v1.sampler.custom_sampler.name=ReplaySampler
""".split()


@pytest.fixture
def values(shipped, seeds) -> list[str]:
    files = [f"data.train_files={TASKS}", f"data.val_files={TASKS}"]
    return [*VALUES, *files, f"actor_rollout_ref.model.path={shipped}", f"replay.seed_from={seeds}"]


def train(folder, *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments]
    environment = {**os.environ, "VERL_PLATFORM": "cpu", **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def assert_trained(folder) -> None:
    steps = read_steps(folder)
    assert list(steps) == [1, 2] and sum(step["replay/injected"] for step in steps.values()) >= 1
    assert all("actor/grad_norm" in step for step in steps.values())


def test_arpo_in_the_defaults_of_a_users_own_config_is_all_it_takes(values, tmp_path):
    (tmp_path / "mine").mkdir()
    head = {"defaults": ["ppo_trainer", "arpo", "_self_"], "hydra": {"searchpath": ["pkg://arpo_verl.recipes"]}}
    own = OmegaConf.from_dotlist([*values, "trainer.experiment_name=mine"])
    OmegaConf.save(OmegaConf.merge(head, own), tmp_path / "mine" / "mine.yaml")
    printed = train(tmp_path, "--config-dir", "mine", "--config-name", "mine")
    assert_trained(tmp_path / "runs" / "mine")
    assert "step 2 of 2" in printed and "it has no run folder" not in printed
    assert len(list((tmp_path / "runs" / "mine" / "trajectories").glob("step_*/*/episode.json"))) == 32


def test_the_plugins_alone_train_from_the_command_line_and_the_run_says_what_it_lacks(values, tmp_path):
    words = [*PLUGINS, *(f"++{value}" for value in values), "trainer.logger=[console,file]"]
    printed = train(tmp_path, *words, ARPO_VERL_RUN="1", VERL_FILE_LOGGER_PATH=str(tmp_path / "metrics.jsonl"))
    assert_trained(tmp_path)
    assert printed.count("nothing checked it before its start, and it has no run folder") == 1
