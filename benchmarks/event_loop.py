"""How long an agent-loop worker's event loop stands still under many episodes, and how often a screenshot is processed.

    python benchmarks/event_loop.py [--smoke] [--json [PATH]] [--episodes N] [--turns N] [--context NAME ...]

One rollout worker of the recipe's own class plays all episodes at once: the real agent loop, token builder, desktop
pool, Ray, load balancer and TransferQueue. Desktops and policy alone are played (`event_loop_parts.py`): screenshots of
1920x1080, each another, replies of UI-TARS's length, after drawn times. Every callback of the worker's loop is timed.
Two servers tell what they were sent, and on which of them each episode was.

- `blocked_cpu_ms`: the longest callback in CPU time of the loop's thread, which other load on the machine does not
  change. `blocked_ms`: in wall time less the time that the thread was ready to run and had no core; waiting for another
  thread's hold on Python's interpreter lock counts.
- `processings_per_screenshot`: calls of the image processor by engine and worker together, over screenshots, with a
  cache of processed images that holds every episode's (the engine's here is the `transformers` engine's own).
- `sent_bytes_per_episode`: screenshots on their way from the worker to the servers, pickled.
- `bytes_ratio`: the first episode's rows, as they lie in TransferQueue, with pixel values in their screenshots' place,
  over what they are (`queue_bytes.py`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import Arguments, machine, report

ROOT = Path(__file__).parents[1]
CONTEXTS = ("full", "window", "segments")
GROUP = 8
"""Rollouts of a task, as in the OSWorld recipes."""
SERVERS = 2
LIMIT_MS = 50.0
STALLED_S = 600.0
"""No episode ends for so long: something is wrong."""


def compose(policy: Path, folder: Path, context: str, episodes: int, turns: int) -> Any:
    """The embedded recipe with screens and lengths of `osworld_full`, and parts that are played."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    # Of 128 desktops, a worker process has 32; real ones have one each.
    overrides = [
        "hydra.searchpath=[pkg://verl.trainer.config]",
        f"run_dir={folder}",
        f"actor_rollout_ref.model.path={policy}",
        f"actor_rollout_ref.rollout.n={min(GROUP, episodes)}",
        "environment.provider=event_loop_parts:Desktop",
        "environment.screen_size=[1920,1080]",
        f"++environment.num_desktops={episodes}",
        "++environment.desktops_per_worker=32",
        f"gui_agent.max_steps={turns}",
        "gui_agent.max_reply_tokens=512",
        "++data.mm_processor_kwargs={min_pixels:3136,max_pixels:2116800}",
        "data.max_prompt_length=5120",
        "data.max_response_length=60416",
    ]
    if context != "full":
        overrides.append(f"+context={context}")
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        config = compose("embedded", overrides=overrides)
    OmegaConf.resolve(config.gui_agent)
    return config


def prompts(episodes: int, group: int) -> Any:
    """A step's batch, as the trainer hands it to the worker."""
    import numpy as np
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.rl_dataset import collate_fn

    from arpo_verl.models.family import load_family
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


def measure(policy: Path, context: str, episodes: int, turns: int, trace: bool = False) -> dict[str, Any]:
    """Play `episodes` at once, in one worker; Ray runs already."""
    import ray
    import transfer_queue as tq
    from event_loop_parts import Server, measured
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
    from verl.utils.import_utils import load_class_from_fqn
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.router import get_router_handle

    from arpo_verl.plugin.settings import connect_pool

    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        config = compose(policy, Path(folder), context, episodes, turns)
        group = config.actor_rollout_ref.rollout.n
        backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
        tq.init({"enable": True, "backend": backend})
        pool = connect_pool(config)
        servers = {
            f"server-{number}": ray.remote(Server).options(num_cpus=0).remote(str(policy)) for number in range(SERVERS)
        }
        ray.get([server.__ray_ready__.remote() for server in servers.values()])
        client = LLMServerClient(config, get_router_handle(servers))
        fqn = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
        manager = load_class_from_fqn(fqn, "AgentLoopManager") if fqn else AgentLoopManagerTQ
        worker = measured(manager(config, client).agent_loop_workers_class)
        worker = worker.options(num_cpus=0).remote(config, client, None, None)
        try:
            ray.get(worker.__ray_ready__.remote())
            while pool.status()["desktops_idle"] < episodes:  # booting is nobody's turn
                time.sleep(0.5)
            ray.get(worker.watch.remote(trace))
            began = time.monotonic()
            ray.get(worker.generate_sequences.remote(prompts(episodes, group)))
            _wait(tq, episodes // group)
            wall_s = time.monotonic() - began
            told = ray.get(worker.told.remote())
            asked = ray.get([server.told.remote() for server in servers.values()])
            return {**figures(told, asked, tq), "wall_s": wall_s}
        finally:
            pool.close()
            for actor in (worker, *servers.values()):
                ray.kill(actor)
            tq.close()


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


def figures(told: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], tq: Any) -> dict[str, Any]:
    """What worker and servers told, together."""
    import queue_bytes

    rows = sorted(key for key in (tq.kv_list() or {})["train"] if key.count("_") == 2)
    first = [key for key in rows if key.startswith(rows[0].rpartition("_")[0] + "_")]
    seen = [set(server["screenshots"]) for server in asked]
    screenshots = len(set().union(*seen))
    episodes = told["episodes"]
    return {
        "episodes": episodes,
        "rows": len(rows),
        "screenshots": screenshots,
        "screenshots_on_two_servers": sum(map(len, seen)) - screenshots,
        "requests": sum(server["requests"] for server in asked),
        "processings_per_screenshot": (told["processed"] + sum(s["processed"] for s in asked)) / screenshots,
        "processed_by_worker": told["processed"],
        "sent_bytes_per_episode": told["sent_bytes_per_episode"],
        **queue_bytes.compare(_row(key) for key in first),
        **told["blocks"],
    }


def _row(key: str) -> dict[str, Any]:
    """All fields of a row, as the trainer's workers get them."""
    from arpo_verl.plugin import queue

    fields = queue.read([key], queue.TRAINING)
    return {name: queue.plain(fields[name][0]) for name in fields.keys()}


def main() -> None:
    parser = Arguments(__doc__, "few short episodes")
    parser.add_size("--episodes", 128, 4, "episodes at once, in groups of eight")
    parser.add_size("--turns", 15, 3, "of each")
    parser.add_argument("--context", nargs="*", choices=CONTEXTS, default=list(CONTEXTS), help="what the model sees")
    parser.add_argument("--trace", action="store_true", help="show where the longest callbacks were at")
    arguments = parser.parse()
    report(
        {**machine(), **run(arguments.context, arguments.episodes, arguments.turns, arguments.trace)}, arguments.json
    )


def run(contexts: Sequence[str], episodes: int, turns: int, trace: bool = False) -> dict[str, Any]:
    """All contexts, one after the other, and the worst of them."""
    # The worker's loop is asyncio's own, whose callbacks can be timed one by one; uvloop's run the same ones.
    os.environ.update(VERL_PLATFORM="cpu", RAY_USE_UVLOOP="0")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    import ray
    from policies.architecture import PolicySize
    from policies.build import build_policy

    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        policy = build_policy(Path(folder, "policy"), size=PolicySize(num_layers=1, vision_depth=1))
        ray.init(address="local", num_cpus=16, include_dashboard=False)
        try:
            by_context = {context: measure(policy, context, episodes, turns, trace) for context in contexts}
        finally:
            ray.shutdown()
    worst = {
        name: max(found[name] for found in by_context.values())
        for name in ("blocked_cpu_ms", "blocked_ms", "processings_per_screenshot", "screenshots_on_two_servers")
    }
    worst["bytes_ratio"] = min(found["bytes_ratio"] for found in by_context.values())
    return {"turns": turns, **worst, "limit_ms": LIMIT_MS, **by_context}


if __name__ == "__main__":
    main()
