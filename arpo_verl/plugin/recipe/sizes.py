"""Refuse numbers that do not divide, fit or add up: the other half of the table in `combinations.py`."""

from __future__ import annotations

from typing import Any

from arpo_verl.plugin.recipe.footprint import weight_copies
from arpo_verl.plugin.recipe.rules import Recipe, Rule, full_name, no, one_of, yes

_TRAINER = "trainer/ppo/v1/trainer_base.py"
_ASYNC = "trainer/ppo/v1/trainer_separate_async.py"
_WORKER = "workers/engine_workers.py"
_FSDP = "workers/engine/fsdp/transformer_impl.py"
_APART: dict[str, Any] = {"mode": "separate_async"}
_CACHE = "rollout.engine_kwargs.vllm.mm_processor_cache_type"


def _cuts(option: str, is_dynamic: str, applies: str = "") -> Rule:
    """Make the rule that a micro-batch divides a rank's rows of an update. A batch to score is several updates."""

    def broken(recipe: Recipe) -> bool:
        size = recipe[option]
        counts = size is not None and not recipe[is_dynamic] and (not applies or recipe[applies])
        return bool(counts and (size < 1 or recipe.rows_per_rank % size))

    return Rule(
        option,
        broken,
        "a divisor of {rows_per_rank}, the rows of an update on one GPU (or on the GPUs that split a sequence)",
        "set it to 1",
        "workers/engine/utils.py | data size must be divisible by force_group_size * micro_batch_size_per_gpu",
    )


def _holds(option: str, is_dynamic: str, split: str, applies: str = "") -> Rule:
    """Make the rule that a dynamic micro-batch can hold the longest sequence."""

    def broken(recipe: Recipe) -> bool:
        counts = recipe[is_dynamic] and (not applies or recipe[applies])
        return bool(counts and (recipe[option] or 0) * recipe[split] < recipe.longest)

    return Rule(
        option,
        broken,
        f"at least {{longest}} when multiplied by the {{{split}}} GPUs that split a sequence: with dynamic batches a "
        "longer episode ends the run",
        "raise it, or lower data.max_response_length",
        "utils/seqlen_balancing.py | assert max_token_len >= max_seq_len",
    )


def _draws_too_many(recipe: Recipe) -> bool:
    drawn = recipe["data.gen_batch_size"]
    by_task = recipe["algorithm.filter_groups.enable"] or recipe["trainer.v1.sampler.sync_refill_failed_groups"]
    return bool(drawn and recipe.mode == "sync" and not by_task and recipe["data.train_batch_size"] % drawn)


def _shares_images(recipe: Recipe) -> bool:
    return bool(recipe["rollout.name"] == "vllm" and recipe[_CACHE] == "shm")


def _gpus_of_node(recipe: Recipe) -> int:
    """Count the GPUs of a node that generate."""
    return int(recipe["rollout.n_gpus_per_node" if recipe.mode == "separate_async" else "trainer.n_gpus_per_node"])


def _loses_updates(option: str) -> Rule:
    """Refuse settings under which veRL loses updates: several updates a step, with weights in host memory.

    To score a batch with the weights that the step began with, veRL saves the newer and restores the older for a while.
    But `fsdp2_sharded_save_to_cpu` saves by `.cpu()`, which copies nothing in host memory: so the newer are lost.
    """

    def broken(recipe: Recipe) -> bool:
        in_host_memory = recipe[option] and recipe["trainer.device"] != "cpu"
        return bool(in_host_memory and recipe["actor.strategy"] == "fsdp2" and weight_copies(recipe.config) > 1)

    return Rule(
        option,
        broken,
        "false with trainer_mode=separate_async and several updates a step: all but the last would be lost",
        "set it to false (optimizer_offload may stay true), or set actor_rollout_ref.actor.strategy=fsdp",
        f"{_ASYNC} | self.actor_rollout_wg.save_model_to_cpu(self.local_trigger_step)",
    )


def _mixes_tensors(recipe: Recipe) -> bool:
    """FSDP2 shards an untied output matrix by itself (`_select_fsdp2_wrap_targets`). Qwen2.5-VL's fused forward
    multiplies by the shard. Qwen3-VL's gathers the matrix first, except with Triton."""
    model = recipe.model
    if not recipe["model.use_fused_kernels"] or model is None:
        return False
    gathers = model.model_type.startswith("qwen3") and recipe["model.fused_kernel_options.impl_backend"] != "triton"
    return bool(recipe["actor.strategy"] == "fsdp2" and not model.tied_embeddings and not gathers)


def _stops_at_start(recipe: Recipe) -> bool:
    logs = (recipe["VERL_LOGGING_LEVEL"] or "INFO").upper() in ("INFO", "DEBUG")
    return recipe["actor_rollout_ref.hybrid_engine"] is False and (recipe.mode != "separate_async" or logs)


def _splits(role: str, option: str) -> Rule:
    """Make the rule that Ulysses can split the heads. Of veRL's two names for its size the older wins if it is set."""
    older = f"{role}.ulysses_sequence_parallel_size"

    def broken(recipe: Recipe) -> bool:
        is_used = (option == older) == ((recipe[older] or 1) > 1) and (role == "actor" or recipe.has_reference)
        return bool(is_used and recipe.model and recipe[f"{role}_split"] not in recipe.fitting_splits)

    return Rule(
        option,
        broken,
        "one of {splits}, the sizes that divide this policy's {heads} and the {gpus} GPUs",
        "leave it out: the actor's is used" if role == "ref" else "",
        "models/transformers/monkey_patch.py | assert num_attention_heads % ulysses_sp_size == 0",
    )


SIZE_RULES = (
    # --- batches, and what they are cut into ---------------------------------------------------------------------
    Rule(
        "data.train_batch_size",
        lambda recipe: recipe.tasks and recipe["data.train_batch_size"] > recipe.tasks,
        "at most {tasks}, the rows of data.train_files: an epoch would have no step",
        "lower it, add tasks, or raise data.tasks.repeat",
        f"{_TRAINER} | self.steps_per_epoch = len(self.train_dataset) // self.config.data.train_batch_size",
    ),
    Rule(
        "data.gen_batch_size",
        _draws_too_many,
        "a divisor of data.train_batch_size={data.train_batch_size}: veRL draws whole batches of that size",
        "leave it out; with algorithm.filter_groups veRL draws single tasks",
        f"{_TRAINER} | must be a positive multiple of gen_batch_size",
    ),
    Rule(
        "actor.ppo_mini_batch_size",
        lambda recipe: recipe.rows_per_update % recipe.ranks,
        "such that it times rollout.n={rollout.n} divides by {ranks}, the number of GPUs (or of groups of GPUs that "
        "split a sequence)",
        "change it, actor_rollout_ref.rollout.n or the number of GPUs",
        f"{_WORKER} | assert mini_batch_size % self.engine.get_data_parallel_size() == 0",
    ),
    _cuts("actor.ppo_micro_batch_size_per_gpu", "actor.use_dynamic_bsz"),
    _cuts("rollout.log_prob_micro_batch_size_per_gpu", "rollout.log_prob_use_dynamic_bsz"),
    _cuts("ref.log_prob_micro_batch_size_per_gpu", "ref.log_prob_use_dynamic_bsz", "has_reference"),
    *(
        Rule(
            f"{name}_per_gpu",
            {name: lambda size: size is not None, f"{name}_per_gpu": lambda size: size is None},
            f"given: veRL's workers do not read {full_name(name)}={{{name}}}",
            f"set it instead of {full_name(name)}",
            f"{_WORKER} | assert self.config.rollout.log_prob_micro_batch_size_per_gpu is not None",
        )
        for name in ("actor.ppo_micro_batch_size", "rollout.log_prob_micro_batch_size", "ref.log_prob_micro_batch_size")
    ),
    Rule(
        "rollout.log_prob_use_dynamic_bsz",
        lambda recipe: bool(recipe["rollout.log_prob_use_dynamic_bsz"]) != bool(recipe["actor.use_dynamic_bsz"]),
        "{actor.use_dynamic_bsz}, like actor_rollout_ref.actor.use_dynamic_bsz: veRL's workers require it",
        "leave it out",
        f"{_WORKER} | assert self.config.actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz",
    ),
    _holds("actor.ppo_max_token_len_per_gpu", "actor.use_dynamic_bsz", "actor_split"),
    _holds("rollout.log_prob_max_token_len_per_gpu", "rollout.log_prob_use_dynamic_bsz", "actor_split"),
    _holds("ref.log_prob_max_token_len_per_gpu", "ref.log_prob_use_dynamic_bsz", "ref_split", "has_reference"),
    # --- the asynchronous trainers -------------------------------------------------------------------------------
    Rule(
        "data.train_batch_size",
        lambda recipe: recipe.mode == "separate_async" and recipe["data.train_batch_size"] != recipe.tasks_of_updates,
        "{tasks_of_updates} with trainer_mode=separate_async: parameter_sync_step times ppo_mini_batch_size",
        "change one of the three",
        f"{_ASYNC} | assert train_batch_size == parameter_sync_step * ppo_mini_batch_size",
    ),
    *(
        Rule(
            f"rollout.{name}",
            _APART | {f"rollout.{name}": lambda number: number < 1},
            "1 or more with trainer_mode=separate_async, which generates on nodes of its own",
            "set it, or trainer.v1.trainer_mode=colocate_async",
            f"{_ASYNC} | assert config.actor_rollout_ref.rollout.{name} > 0",
        )
        for name in ("nnodes", "n_gpus_per_node")
    ),
    Rule(
        "rollout.nnodes",
        {"mode": lambda mode: mode in ("sync", "colocate_async"), "rollout.nnodes": yes},
        "0 with trainer_mode={mode}, in which no node only generates",
        "set it to 0, or trainer.v1.trainer_mode=separate_async",
        "workers/rollout/llm_server.py | self.worker_group.world_size",
    ),
    Rule(
        "rollout.checkpoint_engine.backend",
        _APART | {"rollout.checkpoint_engine.backend": "naive"},
        "nccl or another one with trainer_mode=separate_async: naive cannot send weights to another node",
        "set it to nccl",
        f'{_ASYNC} | assert config.actor_rollout_ref.rollout.checkpoint_engine.backend != "naive"',
    ),
    Rule(
        "reward.reward_model.enable_resource_pool",
        _APART | {"reward.reward_model.enable": yes, "reward.reward_model.enable_resource_pool": no},
        "true with trainer_mode=separate_async: generation never pauses to make room for a reward model",
        "set it to true",
        f"{_ASYNC} | assert config.reward.reward_model.enable_resource_pool",
    ),
    Rule(
        "reward.reward_model.nnodes",
        {"reward.reward_model.enable_resource_pool": yes, "reward.reward_model.nnodes": lambda number: number < 1},
        "1 or more with reward.reward_model.enable_resource_pool=true",
        "set it",
        f"{_TRAINER} | config.reward.reward_model.nnodes must be greater than 0",
    ),
    Rule(
        "actor_rollout_ref.hybrid_engine",
        _stops_at_start,
        "true: only trainer_mode=separate_async reads it, and there veRL 0.9.1 fails while it writes a log line",
        "leave it out; with separate_async set VERL_LOGGING_LEVEL=WARNING in the environment",
        f"{_ASYNC} | [V1SepAsync] hybrid replicas disabled",
    ),
    Rule(
        "trainer.v1.sampler.max_off_policy_threshold",
        {
            "trainer.v1.sampler.max_off_policy_threshold": lambda most: (
                most is not None and (type(most) is not int or most < 1)
            )
        },
        "a whole number from 1, or null for no bound",
        "correct it",
        "trainer/ppo/v1/replay_buffer.py | Invalid max off policy threshold",
    ),
    one_of(
        "trainer.v1.sampler.max_off_policy_strategy",
        ("drop", "wait"),
        "trainer/ppo/v1/replay_buffer.py | Invalid max off policy strategy",
    ),
    _loses_updates("actor.fsdp_config.param_offload"),
    _loses_updates("actor.fsdp_config.offload_policy"),
    # --- GPUs ----------------------------------------------------------------------------------------------------
    one_of("actor.strategy", ("fsdp", "fsdp2"), 'workers/config/engine.py | assert self.strategy in ["fsdp", "fsdp2"'),
    *(
        _splits(role, f"{role}.{name}")
        for role in ("actor", "ref")
        for name in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
    ),
    Rule(
        "model.use_remove_padding",
        lambda recipe: recipe.actor_split > 1 and not recipe["model.use_remove_padding"],
        "true with a sequence split over {actor_split} GPUs (ulysses_sequence_parallel_size)",
        "leave it out",
        f"{_FSDP} | you must enable `use_remove_padding`.",
    ),
    Rule(
        "actor.fsdp_config.fsdp_size",
        lambda recipe: 0 < (size := recipe["actor.fsdp_config.fsdp_size"]) < recipe.gpus and recipe.gpus % size,
        "-1 or a divisor of {gpus}, the GPUs that train",
        "leave it out",
        "workers/engine/fsdp/utils.py | mesh_shape=(world_size // fsdp_size, fsdp_size)",
    ),
    Rule(
        "actor.fsdp_config.offload_policy",
        {"actor.fsdp_config.offload_policy": yes, "actor.strategy": "fsdp"},
        "false with actor.strategy=fsdp, which does not read it",
        "set actor_rollout_ref.actor.strategy=fsdp2, or param_offload=true",
        f"{_FSDP} | if self.engine_config.offload_policy or self.engine_config.forward_only:",
    ),
    Rule(
        "model.use_fused_kernels",
        _mixes_tensors,
        "false with actor.strategy=fsdp2 and a policy without tied embeddings: the first update would end with "
        "`mixed torch.Tensor and DTensor`",
        "to save memory, set actor_rollout_ref.actor.entropy_from_logits_with_chunking=true, or lower "
        "data.mm_processor_kwargs.max_pixels",
        "models/transformers/qwen2_vl.py | vocab_weights=self.lm_head.weight,",
    ),
    # --- rollout engines -----------------------------------------------------------------------------------------
    one_of(
        "rollout.name",
        ("vllm", "sglang", "trtllm", "transformers"),
        "workers/rollout/replica.py | Unknown rollout mode",
    ),
    Rule(
        "rollout.tensor_model_parallel_size",
        lambda recipe: recipe.gpus % recipe.gpus_per_engine,
        "such that the {gpus} GPUs that train make whole engines of {gpus_per_engine} each",
        "set it to a divisor of them",
        f"{_WORKER} | assert self.world_size % infer_world_size == 0",
    ),
    Rule(
        "rollout.tensor_model_parallel_size",
        lambda recipe: (
            recipe.mode == "separate_async"
            and recipe["rollout.nnodes"] * recipe["rollout.n_gpus_per_node"] % recipe.gpus_per_engine
        ),
        "such that the GPUs that only generate make whole engines of {gpus_per_engine} each",
        "set it to a divisor of actor_rollout_ref.rollout.n_gpus_per_node",
        "workers/rollout/llm_server.py | num_replicas = world_size // rollout_world_size",
    ),
    Rule(
        "rollout.tensor_model_parallel_size",
        lambda recipe: recipe.model and recipe.model.num_heads % recipe["rollout.tensor_model_parallel_size"],
        "a divisor of the attention heads: this policy has {heads}",
        "lower it",
    ),
    Rule(
        "rollout.max_model_len",
        lambda recipe: (most := recipe["rollout.max_model_len"]) is not None and most < recipe.longest,
        "at least {longest}, data.max_prompt_length and data.max_response_length together",
        "raise it, or lower data.max_response_length",
        "workers/rollout/vllm_rollout/vllm_async_server.py | leaves no room to generate within the",
    ),
    Rule(
        "rollout.max_num_batched_tokens",
        lambda recipe: (
            recipe["rollout.name"] == "vllm"
            and not recipe["rollout.enable_chunked_prefill"]
            and recipe["rollout.max_num_batched_tokens"] < (recipe["rollout.max_model_len"] or recipe.longest)
        ),
        "at least rollout.max_model_len with rollout.enable_chunked_prefill=false: vLLM does not start otherwise",
        "leave actor_rollout_ref.rollout.enable_chunked_prefill out",
    ),
    Rule(
        _CACHE,
        lambda recipe: _shares_images(recipe) and recipe.gpus_per_engine > _gpus_of_node(recipe),
        "lru with an engine of {gpus_per_engine} GPUs, more than a node has: its processes cannot share memory",
        "set it to lru, or lower actor_rollout_ref.rollout.tensor_model_parallel_size",
    ),
    Rule(
        _CACHE,
        lambda recipe: _shares_images(recipe) and (recipe["rollout.data_parallel_size"] or 1) > 1,
        "lru with rollout.data_parallel_size={rollout.data_parallel_size}: vLLM then shares no images",
        "set it to lru, or actor_rollout_ref.rollout.data_parallel_size=1",
    ),
    Rule(
        "VLLM_PLUGINS",
        lambda recipe: (
            _shares_images(recipe)
            and recipe["VLLM_PLUGINS"] is not None
            and "arpo_verl" not in recipe["VLLM_PLUGINS"].split(",")
        ),
        "unset, or a list with arpo_verl: vLLM's own cache in shared memory can show a request another's picture",
        f"unset it in the environment, or set {full_name(_CACHE)}=lru",
    ),
)
