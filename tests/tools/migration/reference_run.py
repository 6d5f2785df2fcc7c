"""A training script and its YAML, with the options and values of the ARPO reference and EasyR1, in our own text."""

from pathlib import Path

CONFIG = """\
data: {train_files: org/questions@train, val_files: org/questions@test, prompt_key: problem, answer_key: answer,
  image_key: images, max_prompt_length: 2048, max_response_length: 2048, rollout_batch_size: 512, val_batch_size: -1,
  shuffle: true, seed: 1, max_pixels: 4194304, min_pixels: 262144}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 1.0e-2}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 4
    micro_batch_size_per_device_for_experience: 16
    max_grad_norm: 1.0
    padding_free: true
    ulysses_sequence_parallel_size: 1
    model: {model_path: org/policy, enable_gradient_checkpointing: true, trust_remote_code: false,
      freeze_vision_tower: false}
    optim: {lr: 1.0e-6, weight_decay: 1.0e-2, strategy: adamw, lr_warmup_ratio: 0.0}
    fsdp: {enable_full_shard: true, enable_cpu_offload: false, enable_rank0_init: true}
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {temperature: 1.0, n: 5, gpu_memory_utilization: 0.6, enforce_eager: false, enable_chunked_prefill: false,
    tensor_parallel_size: 2, limit_images: 0, val_override_config: {temperature: 0.5, n: 1}}
  ref: {fsdp: {enable_full_shard: true, enable_cpu_offload: true, enable_rank0_init: true},
    offload: {offload_params: false}}
  reward: {reward_type: function, score_function: math, skip_special_tokens: true}
ENV
trainer: {total_episodes: 15, logger: [console, wandb], project_name: easy_r1, experiment_name: questions,
  n_gpus_per_node: 8, nnodes: 1, val_freq: 5, val_before_train: true, val_only: false, val_generations_to_log: 3,
  save_freq: 5, save_limit: 3, save_checkpoint_path: null, load_checkpoint_path: null}
"""
SCRIPT = '''\
set -x

MODEL_PATH=policies/ui-tars  # a folder

PROMPT="""Be of help."""
NUM_GPUS=8
NUM_ENVS={envs}
ROLLOUT_N=8
((ROLLOUT_BSZ = NUM_ENVS/ROLLOUT_N))

python3 -m verl.trainer.main \\
    config=examples/config.yaml \\
    data.format_prompt="${{PROMPT}}" \\
    data.train_files=lists/tasks.json \\
    data.val_files=lists/tasks.json \\
    data.max_prompt_length=64000 \\
    data.max_response_length=8192 \\
    data.max_pixels=2116800 \\
    data.min_pixels=256 \\
    data.rollout_batch_size={prompts} \\
    worker.actor.fsdp.torch_dtype=bf16 \\
    worker.actor.optim.strategy=adamw_bf16 \\
    worker.actor.max_grad_norm=1.0 \\
    worker.actor.optim.lr=1e-6 \\
    worker.actor.ulysses_sequence_parallel_size=1 \\
    worker.actor.padding_free=true \\
    worker.actor.ppo_epochs=1 \\
    worker.actor.clip_ratio_low=0.2 \\
    worker.actor.clip_ratio_high=0.3 \\
    worker.actor.global_batch_size={update} \\
    worker.actor.micro_batch_size_per_device_for_update=1 \\
    worker.actor.micro_batch_size_per_device_for_experience=1 \\
    worker.actor.model.model_path=${{MODEL_PATH}} \\
    worker.rollout.gpu_memory_utilization=0.6 \\
    worker.rollout.temperature=1.0 \\
    worker.rollout.n=$ROLLOUT_N \\
    worker.rollout.limit_images=15 \\
    worker.rollout.tensor_parallel_size=1 \\
    worker.rollout.max_num_batched_tokens=128000 \\
    algorithm.disable_kl=True \\
    algorithm.kl_coef=0 \\
    env.num_envs=$NUM_ENVS \\
    env.max_steps=15 \\
    trainer.experiment_name={name} \\
    trainer.n_gpus_per_node=$NUM_GPUS \\
    trainer.nnodes={nodes} \\
    trainer.save_freq=8 \\
    trainer.save_limit=3 \\
    trainer.val_before_train=True \\
    trainer.val_freq=8 \\
    trainer.total_episodes=15{more}
'''
MORE = " \\\n    algorithm.enable_replay=True \\\n    worker.actor.optim.lr_warmup_ratio=0.05"
# The two published scripts: the paper's run, and the one for a single node.
FULL = {"envs": 128, "prompts": 16, "update": 8, "nodes": 2, "name": "full", "more": ""}
SUBSET = {"envs": 16, "prompts": 2, "update": 1, "nodes": 1, "name": "subset", "more": MORE}
RUNS = {"full": FULL, "subset": SUBSET}
ENV = "env: {num_envs: 32, screen_size: [1920, 1080]}"


def write_run(repository: Path, name: str) -> Path:
    """One of the reference's scripts in a repository of its layout."""
    examples = repository / "examples"
    examples.mkdir(parents=True, exist_ok=True)
    (examples / "config.yaml").write_text(CONFIG.replace("ENV", ENV))
    script = examples / f"{name}.sh"
    script.write_text(SCRIPT.format(**RUNS[name]))
    return script


def write_easyr1_run(repository: Path, *overrides: str) -> Path:
    """One of EasyR1's."""
    examples = repository / "examples"
    examples.mkdir(parents=True, exist_ok=True)
    (examples / "config.yaml").write_text(CONFIG.replace("ENV\n", ""))
    script = examples / "questions.sh"
    words = ["python3 -m verl.trainer.main", "config=examples/config.yaml", *overrides]
    script.write_text("#!/bin/bash\nset -x\n\n" + " \\\n    ".join(words) + "\n")
    return script
