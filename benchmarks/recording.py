"""What recording episodes costs: the same episodes with and without it, in turn.

    python benchmarks/recording.py [--smoke] [--json PATH] [--rounds N] [--episodes N] [--desktops N]

The expert's replies stand for the policy; the agent loop, the pool and the embedded desktops are the real ones. A round
plays a step's episodes. They alternate, one round without and one with recording, which of the two first changes.

    overhead_ratio          median wall time of the rounds with recording, over that of those without
    overhead_share_of_step  processor time that recording adds to a round's agent loop, as a share of the round's wall
                            time: the median over the pairs. A policy takes no time here, and nothing is trained, so it
                            is more than the share of a training step.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from figures import Arguments, report
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.utils import hf_processor, hf_tokenizer
from verl.workers.rollout.replica import TokenOutput

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.plugin.agent_loop import GuiAgentLoop
from arpo_verl.plugin.settings import connect_pool
from arpo_verl.policy.architecture import PolicySize
from arpo_verl.policy.build import build_policy
from arpo_verl.pool.desktop_pool import DesktopPool
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies, expert_task_ids
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.types import Task

END = "<|im_end|>"


class ExpertEngine:
    """Stands for veRL's `LLMServerClient`: gives the expert's replies to a task, in order."""

    def __init__(self, tokenizer: Any, geometry: ImageGeometry, task: Task):
        size = geometry.image_size(EXPERT_SCREEN)
        texts = [GRAMMARS["ui_tars"].format(reply, size, EXPERT_SCREEN) for reply in expert_replies(task.task_id)]
        self._replies: Iterator[list[int]] = (tokenizer.encode(text + END, add_special_tokens=False) for text in texts)

    async def generate(self, **_: Any) -> TokenOutput:
        token_ids = next(self._replies)
        return TokenOutput(token_ids=token_ids, log_probs=[-0.1] * len(token_ids), stop_reason="completed")


@dataclass(frozen=True)
class Stage:
    """What all rounds share."""

    tokenizer: Any
    processor: Any
    tasks: tuple[Task, ...]
    pool: DesktopPool
    num_desktops: int

    def play_round(self, number: int, folder: Path | None) -> dict[str, float]:
        """Play every task once, as many at a time as there are desktops; returns seconds."""
        config = recipe(self.num_desktops, folder)

        async def play() -> list[float]:
            return await asyncio.gather(*(self._play(config, task, number, i) for i, task in enumerate(self.tasks)))

        wall, processor = time.perf_counter(), time.process_time()
        scores = asyncio.run(play())
        figures = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}
        return {**figures, "success": statistics.fmean(scores)}

    async def _play(self, config: DictConfig, task: Task, round_number: int, number: int) -> float:
        loop = GuiAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=ExpertEngine(self.tokenizer, ImageGeometry.from_processor(self.processor), task),
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.processor.config.model_type,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            tools=None,
            pool=self.pool,
        )
        row = {
            **{"uid": f"{number:08x}", "session_id": 0, "global_steps": round_number, "data_source": "embedded"},
            "extra_info": {"task_id": task.task_id, "instruction": task.instruction, "spec": dict(task.spec)},
        }
        output = await loop.run({"temperature": 1.0, "logprobs": True}, **row)
        return output.extra_fields["success"]


def recipe(num_desktops: int, folder: Path | None) -> DictConfig:
    """The sections that the agent loop reads, as in the embedded recipe."""
    agent = {"max_steps": 8, "max_screenshots": 8, "max_reply_tokens": 96, "prompt": "compact"}
    rollout = {"prompt_length": 512, "response_length": 1536, "full_determinism": False}
    return OmegaConf.create(
        {
            "gui_agent": {**agent, "trajectory_dir": None if folder is None else str(folder)},
            "environment": {"provider": "embedded", "screen_size": [640, 480], "num_desktops": num_desktops},
            "data": {},
            "actor_rollout_ref": {"rollout": rollout},
        }
    )


def measure(stage: Stage, num_pairs: int, folder: Path) -> dict[str, float]:
    """Alternate rounds; the first, which fills caches, does not count."""
    stage.play_round(0, None)
    rounds: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for pair in range(1, num_pairs + 1):
        for is_recorded in (False, True) if pair % 2 else (True, False):
            rounds[is_recorded].append(stage.play_round(pair, folder if is_recorded else None))
    records = [path.parent for path in folder.glob("step_*/*/episode.json")]
    assert len(records) == num_pairs * len(stage.tasks), f"{len(records)} episodes were recorded"
    without, recorded = ([r["wall_s"] for r in rounds[is_recorded]] for is_recorded in (False, True))
    shares = [(w["cpu_s"] - o["cpu_s"]) / o["wall_s"] for o, w in zip(rounds[False], rounds[True], strict=True)]
    shots = [len(list(record.glob("*.png"))) for record in records]
    sizes = [sum(file.stat().st_size for file in record.iterdir()) for record in records]
    return {
        "overhead_ratio": statistics.median(recorded) / statistics.median(without),
        "overhead_share_of_step": statistics.median(shares),
        "overhead_cpu_ms_per_episode": statistics.median(
            1000 * (w["cpu_s"] - o["cpu_s"]) / len(stage.tasks)
            for o, w in zip(rounds[False], rounds[True], strict=True)
        ),
        "bytes_per_episode": statistics.fmean(sizes),
        "screenshots_per_episode": statistics.fmean(shots),
        "episodes": len(records),
        "episodes_per_round": len(stage.tasks),
        "desktops": stage.num_desktops,
        "round_s_without": statistics.median(without),
        "round_s_with": statistics.median(recorded),
        "round_s_spread_without": max(without) / min(without),
        "success": statistics.fmean(r["success"] for kind in rounds.values() for r in kind),
    }


def main() -> None:
    parser = Arguments(__doc__, "two rounds of four episodes on two desktops")
    parser.add_size("--rounds", 8, 2, "of each kind")
    parser.add_size("--episodes", 32, 4, "of a round")
    parser.add_size("--desktops", 8, 2, "at once")
    args = parser.parse()
    known = {task.task_id: task for task in load_tasks("embedded")}
    ids = expert_task_ids()
    tasks = tuple(known[ids[number % len(ids)]] for number in range(args.episodes))
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="arpo_verl-recording-") as scratch:
        model = str(build_policy(Path(scratch) / "policy", size=PolicySize(num_layers=1, vision_depth=1)))
        pool = connect_pool(recipe(args.desktops, None))
        try:
            stage = Stage(hf_tokenizer(model), hf_processor(model), tasks, pool, args.desktops)
            figures = measure(stage, args.rounds, Path(scratch) / "trajectories")
        finally:
            pool.close()
            ray.shutdown()
    report(figures, args.json)


if __name__ == "__main__":
    main()
