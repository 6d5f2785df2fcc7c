"""What a screenshot costs in veRL's vLLM rollout, at each turn of an episode.

    make vllm && .cache/vllm/bin/python benchmarks/vllm_images.py [--smoke] [--json [PATH]] [--episodes N] [--turns N]
    python benchmarks/vllm_images.py --gpu ...   # stock vLLM, on a GPU
    .cache/vllm/bin/python benchmarks/vllm_images.py --alone ...   # on a busy machine: vLLM without Ray

veRL's own replica, server and client, on a CPU or a GPU, with our rollout worker and agent loop: episodes of
screenshots of 1920x1080 with Qwen2.5-VL's patches, in bfloat16 as on GPUs, so an image has 25.3 MB; a model of tiny
weights. Desktops are played (`event_loop_parts.py`). The engine writes three tokens a turn, and a click takes their
place, so that each episode has all its turns. All episodes take a turn together, and `vllm_counters.py` counts in
vLLM's processes what each turn took. Not in it: a trainer and weight updates, more than one worker. `--alone` leaves
out Ray, veRL's server and the agent loop too: it asks vLLM's `AsyncLLM`, with those options and prompts of that form.
Its figures stand under `alone`, by version.

Each figure is of one episode, by turn where it is a list.

- `bytes`: sent, received, written to and read from shared memory, by vLLM's processes together.
- `core_cpu_ms`, `worker_cpu_ms`: CPU time of EngineCore's process and of the worker's, without what they spin while
  they wait for a message, and without the model's own forward passes (`model_cpu_ms`). `api_cpu_ms` is the server's
  process, which prepares images. With `--gpu`, a worker's includes what it spins while it waits for the GPU.
- `processings_per_screenshot`: images that the processor was given, over screenshots.
- `turn15_over_turn2`: bytes of the last turn over those of the second.
- `bytes_ratio`: bytes of an episode with vLLM's default cache, `lru`, over those with the last one.
- `with_updates`: of two episodes, with what the asynchronous modes do to the engine at a weight update before each
  turn, but for the weights: generation stops, caches are emptied, and it goes on. No request runs then.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from event_loop_parts import THOUGHT
from figures import Arguments, machine, report
from vllm_counters import BYTES, difference, installed, read_counts

ROOT = Path(__file__).parents[1]
STALLED_S = 600.0
"""No episode ends for so long: something is wrong."""
CACHES = ("lru", "shm")
"""`mm_processor_cache_type`, vLLM's default first."""
CACHE_GB = 4
"""More than all episodes' images."""
WRITTEN_TOKENS = 3
SCREEN = (1920, 1080)
PIXELS = {"min_pixels": 3136, "max_pixels": 2116800}
TOKENS_A_TURN = 2900
"""A screenshot of 2,691 tokens, a reply, and the template's."""


def build(folder: Path) -> Path:
    """A Qwen2.5-VL with one layer in each tower, whose image encoder attends within windows alone."""
    from policies.architecture import PolicySize
    from policies.build import build_policy

    language = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "intermediate_size": 64}
    vision = {"hidden_size": 32, "depth": 1, "num_heads": 1, "intermediate_size": 64}
    size = PolicySize(**language, **{f"vision_{name}": value for name, value in vision.items()})
    policy = build_policy(folder, size=size)
    path = policy / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"]["fullatt_block_indexes"] = []  # one image has 10,764 patches
    config["text_config"]["max_position_embeddings"] = 65536
    path.write_text(json.dumps(config))
    return policy


def compose(policy: Path, folder: Path, cache: str, episodes: int, turns: int, device: str) -> Any:
    """The embedded recipe on vLLM, with screens and precision of `osworld_full`."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    vllm = "actor_rollout_ref.rollout.engine_kwargs.vllm"
    tokens = TOKENS_A_TURN * (turns + 1)
    overrides = [
        "hydra.searchpath=[pkg://verl.trainer.config]",
        "+engine=vllm_cpu",
        f"run_dir={folder}",
        f"trainer.device={device}",
        f"actor_rollout_ref.model.path={policy}",
        f"actor_rollout_ref.rollout.n={episodes}",
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "actor_rollout_ref.rollout.load_format=auto",  # its own weights: no trainer sends any
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        f"actor_rollout_ref.rollout.checkpoint_engine.backend={'ray' if device == 'cpu' else 'naive'}",
        f"actor_rollout_ref.rollout.max_model_len={tokens}",
        "actor_rollout_ref.rollout.max_num_batched_tokens=16384",
        f"{vllm}.kv_cache_memory_bytes={episodes * tokens * 160}",
        f"++{vllm}.mm_processor_cache_gb={CACHE_GB}",
        f"++{vllm}.mm_processor_cache_type={cache}",
        f"++{vllm}.mm_processor_kwargs=${{data.mm_processor_kwargs}}",
        "environment.provider=event_loop_parts:Desktop",
        f"environment.screen_size={list(SCREEN)}",
        f"++environment.num_desktops={episodes}",
        f"++environment.desktops_per_worker={episodes}",
        f"gui_agent.max_steps={turns}",
        "gui_agent.max_reply_tokens=128",
        f"++data.mm_processor_kwargs={{{','.join(f'{name}:{value}' for name, value in PIXELS.items())}}}",
        "data.max_prompt_length=5120",
        f"data.max_response_length={tokens - 5120}",
    ]
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        config = compose("embedded", overrides=overrides)
    OmegaConf.resolve(config.gui_agent)
    return config


def prompts(episodes: int, group: int) -> Any:
    """A step's batch, as the trainer hands it to the worker."""
    import numpy as np
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.rl_dataset import collate_fn

    from arpo_verl.agent.models.family import load_family
    from arpo_verl.plugin.dataset import DATA_SOURCE

    words = "Open the spreadsheet in the folder Documents, sum its second column, and write the total into a new file."
    rows = [
        {
            "raw_prompt": load_family("small").opening(words, "English", ())[:-1],
            "data_source": DATA_SOURCE,
            "reward_model": {"style": "rule", "ground_truth": f"task-{number}"},
            "extra_info": {"index": number, "task_id": f"task-{number}", "instruction": words, "spec": "{}"},
            "index": number,
        }
        for number in range(episodes // group)
    ]
    batch = collate_fn(rows)
    batch["uid"] = np.array([f"uid-{number}" for number in range(len(rows))], dtype=object)
    prompts = tu.get_tensordict(batch)
    tu.assign_non_tensor_data(prompts, "global_steps", 1)
    return prompts


def _wait(tq: Any, groups: int) -> None:
    """Until all groups are over.

    Raises:
        RuntimeError: one failed, or nothing happens any more.
    """
    done, since = 0, time.monotonic()
    while done < groups:
        tags = [tag for key, tag in ((tq.kv_list() or {}).get("train") or {}).items() if key.count("_") == 0]
        states = [tag.get("status") for tag in tags]  # a key is there a moment before its tag
        if "failure" in states:
            raise RuntimeError("an episode failed; the worker's log says why")
        if states.count("finished") > done:
            done, since = states.count("finished"), time.monotonic()
        if time.monotonic() - since > STALLED_S:
            raise RuntimeError(f"{done} of {groups} groups were over, and no other within {STALLED_S:g} s")
        time.sleep(0.5)


def watched(workers_class: Any) -> Any:
    """A class of rollout workers whose episodes take each turn together, with a click for a reply."""
    upstream = workers_class.__ray_actor_class__

    class WatchedWorker(upstream):  # type: ignore[misc,valid-type]
        async def watch(self, folder: str, episodes: int, updated: Any) -> None:
            """Count from here on; do before each turn with the server `updated` what a weight update does."""
            self._folder, self._updated, self._turns = Path(folder), updated, {}
            self._gather = asyncio.Barrier(episodes)
            self._generate, self.llm_client.generate = self.llm_client.generate, self._turn

        async def _turn(self, request_id: str, *, image_data: Sequence[Any], **kwargs: Any) -> Any:
            turn = self._turns.setdefault(len(image_data), {"prompt_tokens": [], "cached_tokens": [], "wall_s": []})
            if await self._gather.wait() == 0:
                if self._updated is not None:
                    await self._updated.abort_all_requests.remote()
                    await self._updated.resume_generation.remote()
                turn["before"], turn["begin"] = read_counts(self._folder), time.monotonic()
            await self._gather.wait()
            kwargs["sampling_params"] = {**kwargs["sampling_params"], "max_tokens": WRITTEN_TOKENS, "ignore_eos": True}
            output = await self._generate(request_id, image_data=image_data, **kwargs)
            turn["wall_s"].append(time.monotonic() - turn["begin"])
            turn["prompt_tokens"].append(len(kwargs["prompt_ids"]))
            turn["cached_tokens"].append(output.extra_fields["num_cached_tokens"])
            if await self._gather.wait() == 0:
                turn["after"] = read_counts(self._folder)
            click = f"Thought: {THOUGHT[:60]}\nAction: click(start_box='({20 * len(image_data)},40)')<|im_end|>"
            output.token_ids = self.tokenizer.encode(click, add_special_tokens=False)
            output.log_probs = [-0.5] * len(output.token_ids)
            return output

        async def turns(self) -> list[dict[str, Any]]:
            """What was counted, in order."""
            return [self._turns[number] for number in sorted(self._turns)]

    return ray.remote(WatchedWorker)


def measure(
    policy: Path, counts: Path, cache: str, episodes: int, turns: int, updates: bool, device: str
) -> list[dict[str, Any]]:
    """Play the episodes at once, in one worker; Ray runs already."""
    import transfer_queue as tq
    from verl.utils.import_utils import load_class_from_fqn
    from verl.workers.rollout.llm_server import LLMServerManager

    from arpo_verl.plugin.settings import connect_pool

    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        config = compose(policy, Path(folder), cache, episodes, turns, device)
        tq.init(
            {
                "enable": True,
                "backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}},
            }
        )
        pool = connect_pool(config)
        servers = LLMServerManager.create(config)
        client = servers.get_client()
        manager = load_class_from_fqn(
            config.actor_rollout_ref.rollout.agent.agent_loop_manager_class, "AgentLoopManager"
        )
        worker = watched(manager(config, client).agent_loop_workers_class)
        worker = worker.options(num_cpus=0).remote(config, client, None, None)
        try:
            while pool.status()["desktops_idle"] < episodes:  # booting is nobody's turn
                time.sleep(0.5)
            ray.get(worker.watch.remote(str(counts), episodes, servers.server_handles[0] if updates else None))
            ray.get(worker.generate_sequences.remote(prompts(episodes, episodes)))
            _wait(tq, 1)
            found: list[dict[str, Any]] = ray.get(worker.turns.remote())
            return found
        finally:
            pool.close()
            ray.kill(worker)
            tq.close()


async def play_alone(
    policy: Path, counts: Path, cache: str, episodes: int, turns: int, updates: bool
) -> list[dict[str, Any]]:
    """Ask vLLM for what `measure` asks veRL's server for."""
    import verl  # noqa: F401  # and with it what a CPU needs
    from event_loop_parts import screenshot
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from arpo_verl.lib.images import LazyImage, content_id
    from arpo_verl.types import Size

    tokens = TOKENS_A_TURN * (turns + 1)
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(policy),
            dtype="bfloat16",
            enforce_eager=True,
            distributed_executor_backend="mp",
            max_model_len=tokens,
            max_num_seqs=32,
            max_num_batched_tokens=16384,
            kv_cache_memory_bytes=episodes * tokens * 160,
            block_size=32,
            limit_mm_per_prompt={"image": turns, "video": 0},
            mm_processor_kwargs=PIXELS,
            mm_processor_cache_type=cache,
            mm_processor_cache_gb=CACHE_GB,
        )
    )
    encode = engine.get_tokenizer().encode
    opening = encode("<|im_start|>Open the spreadsheet.<|im_end|>", add_special_tokens=False)
    shown = encode("<|im_start|><|vision_start|><|image_pad|><|vision_end|><|im_end|>", add_special_tokens=False)
    reply = encode(f"Thought: {THOUGHT[:60]}\nAction: click(start_box='(20,40)')<|im_end|>", add_special_tokens=False)
    sampling = SamplingParams(temperature=1, max_tokens=WRITTEN_TOKENS, ignore_eos=True, logprobs=0)
    files = [[screenshot(*SCREEN, f"{episode} {turn}") for turn in range(turns)] for episode in range(episodes)]

    async def take_turn(turn: dict[str, Any], episode: int, number: int) -> None:
        images = [
            LazyImage(Size(*SCREEN), content_id(file), lambda file=file: file) for file in files[episode][:number]
        ]  # type: ignore[misc]
        prompt = {
            "prompt_token_ids": opening + (shown + reply) * (number - 1) + shown,
            "multi_modal_data": {"image": images},
            "mm_processor_kwargs": PIXELS,
        }
        async for output in engine.generate(prompt, sampling, f"{episode}-{number}"):  # type: ignore[arg-type]
            last = output
        turn["wall_s"].append(time.monotonic() - turn["begin"])
        turn["prompt_tokens"].append(len(last.prompt_token_ids or ()))
        turn["cached_tokens"].append(last.num_cached_tokens or 0)

    played: list[dict[str, Any]] = []
    for number in range(1, turns + 1):
        if updates:
            await engine.pause_generation(wait_for_inflight_requests=False, clear_cache=True)
            await engine.reset_prefix_cache(reset_connector=True)
            await engine.reset_mm_cache()
            await engine.reset_encoder_cache()
            await engine.resume_generation()
        turn: dict[str, Any] = {"prompt_tokens": [], "cached_tokens": [], "wall_s": []}
        turn |= {"before": read_counts(counts), "begin": time.monotonic()}
        await asyncio.gather(*[take_turn(turn, episode, number) for episode in range(episodes)])
        played.append({**turn, "after": read_counts(counts)})
        print(f"{cache}: turn {number} in {max(turn['wall_s']):.1f} s", flush=True)
    engine.shutdown()
    return played


def figures(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one episode, by turn."""
    episodes = len(turns[0]["wall_s"])
    counted = [difference(turn["before"], turn["after"]) for turn in turns]
    by_role = {
        f"{role}_{name}": [turn[role][name] // episodes for turn in counted] for role in counted[0] for name in BYTES
    }

    def cpu_ms(role: str) -> list[float]:
        without = ("waited_ns", "model_ns")
        return [(turn[role]["cpu_ns"] - sum(turn[role][name] for name in without)) / 1e6 / episodes for turn in counted]

    crossed = [sum(by_role[name][number] for name in by_role) for number in range(len(turns))]
    processed = [turn["api"]["processed"] / episodes for turn in counted]
    return {
        "episodes": episodes,
        "bytes": crossed,
        "bytes_of_episode": sum(crossed),
        "turn15_over_turn2": crossed[-1] / crossed[1],
        "core_cpu_ms": cpu_ms("core"),
        "worker_cpu_ms": cpu_ms("worker"),
        "api_cpu_ms": cpu_ms("api"),
        "model_cpu_ms": [turn["worker"]["model_ns"] / 1e6 / episodes for turn in counted],
        "processings": processed,
        "processings_per_screenshot": sum(processed) / len(turns),
        "prefilled_tokens": [
            statistics.fmean(turn["prompt_tokens"]) - statistics.fmean(turn["cached_tokens"]) for turn in turns
        ],
        "wall_s": [max(turn["wall_s"]) for turn in turns],
        "by_process": by_role,
    }


def run(
    cache: str, episodes: int, turns: int, device: str, updates: bool = False, alone: bool = False
) -> dict[str, Any]:
    """With an engine of its own, on "cpu" or "cuda", and a Ray of its own unless it is `alone`."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, installed(Path(folder, "counts")) as variables:
        path = os.pathsep.join([variables["PYTHONPATH"], str(ROOT)])
        os.environ.update({**variables, "PYTHONPATH": path})
        if device == "cpu":
            os.environ["VERL_PLATFORM"] = device
        policy, counts = build(Path(folder, "policy")), Path(variables["BENCHMARK_COUNTERS"])
        if alone:
            sys.path.insert(0, str(counts))  # its entry point, which this process's engine looks for
            return figures(asyncio.run(play_alone(policy, counts, cache, episodes, turns, updates)))
        ray.init(address="local", num_cpus=16, num_gpus=1, include_dashboard=False)
        try:
            return figures(measure(policy, counts, cache, episodes, turns, updates, device))
        finally:
            ray.shutdown()


def run_alone(*arguments: Any) -> dict[str, Any]:
    """In a process of its own, which counts as the server's: `run` without Ray."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(functools.partial(run, alone=True), *arguments).result()


def main() -> None:
    parser = Arguments(__doc__, "two short episodes")
    parser.add_size("--episodes", 8, 2, "episodes at once")
    parser.add_size("--turns", 15, 3, "of each")
    parser.add_argument("--cache", nargs="*", choices=CACHES, default=list(CACHES), help="`mm_processor_cache_type`")
    parser.add_argument("--alone", action="store_true", help="vLLM without Ray, veRL's server and the agent loop")
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPU, with stock vLLM")
    arguments = parser.parse()
    measured, device = machine(), "cuda" if arguments.gpu else "cpu"
    start = run_alone if arguments.alone else run
    by_cache = {cache: start(cache, arguments.episodes, arguments.turns, device) for cache in arguments.cache}
    again = [] if arguments.smoke else arguments.cache
    updated = {cache: start(cache, 2, arguments.turns, device, True) for cache in again}
    figures = {**by_cache, "with_updates": updated, "load_after": os.getloadavg()[0]}
    known = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    if arguments.alone:
        new = {"alone": {**known.get("alone", {}), version("vllm"): {**measured, **figures}}}
    else:
        new = {**measured, **summary(by_cache), **figures}
    report({**known, **new}, arguments.json)


def summary(by_cache: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is asked of the last one."""
    first, *_, last = [*by_cache.values(), *by_cache.values()]
    names = ("turn15_over_turn2", "core_cpu_ms", "worker_cpu_ms", "processings_per_screenshot")
    return {"bytes_ratio": first["bytes_of_episode"] / last["bytes_of_episode"], **{name: last[name] for name in names}}


if __name__ == "__main__":
    main()
