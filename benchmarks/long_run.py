"""A thousand training steps' worth of episodes in one process: does anything grow?

    .venv/bin/python benchmarks/long_run.py [--smoke] [--steps N] [--embedded-steps N] [--json PATH]

A step is what the embedded recipe's is in small: two prompts, two sessions each, through the agent loop, the pool, the
recorder, veRL's own post-processing, TransferQueue and the sampler with its store of successes; nothing is trained. The
rollout engine is a script: a third of the groups fail whole, so that successes are replayed. `--steps` are played on
fake desktops, of which each breaks now and then and is replaced, `--embedded-steps` on real embedded ones by the
expert's replies. At the end of each step, with no episode running, it counts over this process and all below it,
Ray's own and the desktops' among them:

    memory_mib         private memory (USS) of all processes together
    descriptors        open files of all processes that are there throughout
    processes          how many there are
    threads            of this process
    disk_mib           screenshots and all else of the records but the text of episodes, the queue's and scratch folders
    shared_mib         what lies in /dev/shm besides Ray's own store

Each figure is a slope per 1,000 episodes: the line through the medians of the last two thirds' halves, the first third
being warm-up. `BOUNDS` says how much is flat; `grew` names what is not. `text_bytes_per_episode` is what a record
without its screenshots takes on disk: it stays for as long as the run's folder, by design.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import ray
from figures import Arguments, machine, report
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from policies.architecture import PolicySize
from policies.build import build_policy
from trainer_run import ROOT
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import hf_processor, hf_tokenizer
from verl.workers.rollout.replica import TokenOutput

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.errors import DesktopError
from arpo_verl.plugin.agent_loop import GuiAgentLoop
from arpo_verl.plugin.settings import connect_pool
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies, expert_task_ids
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.types import Task

PROMPTS, SESSIONS = 2, 2
END = "<|im_end|>"
# The fake's square lies at the top left of its screen.
HIT, MISS = "Action: click(start_box='(20,20)')", "Action: click(start_box='(300,200)')"
DONE = "Thought: Done.\nAction: finished()"
MIB = 2**20
RECORDS_MIB = 4
"""What the recorder may keep of screenshots: soon reached."""

BOUNDS = {"memory_mib": 32.0, "descriptors": 2.0, "processes": 0.5, "threads": 0.5, "disk_mib": 2.0, "shared_mib": 1.0}
"""Per 1,000 episodes. Memory: the 4,000 episodes of 1,000 such steps may cost 128 MiB of all processes."""


class Script:
    """Stands for veRL's `LLMServerClient`: gives these replies."""

    def __init__(self, tokenizer: Any, replies: list[str]):
        self._replies = (tokenizer.encode(text + END, add_special_tokens=False) for text in replies)

    async def generate(self, **_: Any) -> TokenOutput:
        token_ids = next(self._replies)
        extra = {"global_steps": 1, "min_global_steps": 1, "max_global_steps": 1}
        log_probs = [-0.1] * len(token_ids)
        return TokenOutput(token_ids=token_ids, log_probs=log_probs, stop_reason="completed", extra_fields=extra)


class Stage:
    """What all steps share: the real sampler, pool and post-processing, and a queue."""

    def __init__(self, config: DictConfig, tasks: list[Task]):
        import transfer_queue as tq

        self.tq, self.config, self.tasks = tq, config, tasks
        path = config.actor_rollout_ref.model.path
        self.tokenizer, self.processor = hf_tokenizer(path), hf_processor(path)
        self.geometry = ImageGeometry.from_processor(self.processor)
        self.sampler = PPOTrainer._build_replay_buffer(
            SimpleNamespace(
                config=config, trainer_mode="sync", _add_prompts_to_generate=lambda num_prompts: num_prompts
            )
        )
        # The worker class under Ray's actor, without the worker's start: only what its post-processing reads.
        worker = object.__new__(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
        worker.tokenizer, worker.processor, worker.mm_processor_kwargs = self.tokenizer, self.processor, {}
        worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
        self.worker = worker
        self.embedded = config.environment.provider == "embedded"
        self.lost = self.replays = self.episodes = 0
        self.loop = asyncio.new_event_loop()

    def replies(self, task: Task, solves: bool) -> list[str]:
        """An episode's replies: the expert's, of which a failure does the last alone."""
        if not self.embedded:
            return [HIT if solves else MISS, DONE]
        size = self.geometry.image_size(EXPERT_SCREEN)
        texts = [GRAMMARS["ui_tars"].format(reply, size, EXPERT_SCREEN) for reply in expert_replies(task.task_id)]
        return texts if solves else texts[-1:]

    def step(self, number: int) -> None:
        """One training step, as far as desktops and data are concerned."""
        rng = np.random.default_rng(number)
        prompts = []
        for index in range(PROMPTS):
            task = self.tasks[(number * PROMPTS + index) % len(self.tasks)]
            fails = rng.random() < 1 / 3
            prompts.append(
                (f"{number:06d}{index:02d}", task, [not fails and bool(rng.integers(2)) for _ in range(SESSIONS)])
            )
        sessions = [
            self._session(number, uid, task, session, solves)
            for uid, task, outcomes in prompts
            for session, solves in enumerate(outcomes)
        ]

        async def play() -> list[bool]:
            return await asyncio.gather(*sessions)

        done = self.loop.run_until_complete(play())
        self.episodes += sum(done)
        self.lost += len(done) - sum(done)
        for place, (uid, _, _) in enumerate(prompts):
            whole = all(done[place * SESSIONS : (place + 1) * SESSIONS])
            tag = {"is_prompt": True, "status": "finished" if whole else "failure", "global_steps": number}
            self.tq.kv_batch_put(keys=[uid], partition_id="train", tags=[tag])
        batch, metrics = self.sampler.sample(global_steps=number, partition_id="train", batch_size=PROMPTS)
        self.replays += int(metrics["replay/injected"])
        self.tq.kv_clear(keys=list(batch.keys), partition_id="train")

    async def _session(self, number: int, uid: str, task: Task, session: int, solves: bool) -> bool:
        loop = GuiAgentLoop(
            trainer_config=DictConfigWrap(self.config),
            server_manager=Script(self.tokenizer, self.replies(task, solves)),
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.processor.config.model_type,
            dataset_cls=None,
            data_config=DictConfigWrap(self.config.data),
            tools=None,
        )
        # A retry begins the replies anew.
        loop.server_manager.generate = Retried(self, task, solves).generate
        row = {
            **{"uid": uid, "session_id": session, "global_steps": number, "data_source": "long_run"},
            **{"raw_prompt": [{"role": "user", "content": task.instruction}], "reward_model": {"ground_truth": ""}},
            "extra_info": {
                "index": 0,
                "task_id": task.task_id,
                "instruction": task.instruction,
                "spec": dict(task.spec),
            },
        }
        try:
            output = await loop.run({"temperature": 1.0, "logprobs": True}, **row)
        except DesktopError:
            return False
        await self.worker._agent_loop_postprocess(output, False, **row)
        return True


class Retried:
    """Gives the replies from the first on to each attempt, which has a prompt of its own to begin with."""

    def __init__(self, stage: Stage, task: Task, solves: bool):
        self._stage, self._task, self._solves, self._script = stage, task, solves, None

    async def generate(self, *, image_data: list[Image.Image], **arguments: Any) -> TokenOutput:
        if len(image_data) == 1 or self._script is None:
            self._script = Script(self._stage.tokenizer, self._stage.replies(self._task, self._solves))
        return await self._script.generate(image_data=image_data, **arguments)


# --- What may grow ---------------------------------------------------------------------------------------------------


def kind_of(process: psutil.Process) -> str:
    """Which of Ray's processes, or of a desktop's programs, by its title."""
    title = (process.cmdline() or [process.name()])[0]
    return title.split(".")[0].split(" ")[0] if title.startswith("ray::") else Path(title).name


def count(folder: Path) -> dict[str, float]:
    """What this process and all below it hold at this moment."""
    own = psutil.Process()
    figures = defaultdict(float, {"threads": float(own.num_threads())})
    for process in [own, *own.children(recursive=True)]:
        try:
            with process.oneshot():
                memory, descriptors = process.memory_full_info().uss / MIB, process.num_fds()
                kind = "own" if process == own else kind_of(process)
        except psutil.Error:
            continue
        for suffix in ("", f" of {kind}"):
            figures[f"memory_mib{suffix}"] += memory
            figures[f"descriptors{suffix}"] += descriptors
        figures["processes"] += 1
    texts, rest = [], 0
    for file in folder.rglob("*"):
        try:
            size = file.lstat().st_size if file.is_file() and not file.is_symlink() else 0
        except OSError:
            continue
        if file.suffix in (".json", ".jsonl"):
            texts.append(size)
        else:
            rest += size
    figures["disk_mib"], figures["text_mib"] = rest / MIB, sum(texts) / MIB
    shared = (entry for entry in os.scandir("/dev/shm") if not entry.name.startswith(("plasma", "ray", "sem.")))
    figures["shared_mib"] = sum(entry.stat().st_size for entry in shared if entry.is_file()) / MIB
    return figures


def slope(values: list[float], episodes: list[int]) -> float:
    """Growth per 1,000 episodes behind the first third: between the medians of the rest's two halves."""
    rest = len(values) // 3
    values, episodes = values[rest:], episodes[rest:]
    half = len(values) // 2
    (x0, y0), (x1, y1) = (
        (statistics.median(episodes[part]), statistics.median(values[part]))
        for part in (slice(half), slice(half, None))
    )
    return 1000 * (y1 - y0) / (x1 - x0)


def measure(stage: Stage, steps: int, folder: Path) -> dict[str, Any]:
    """Play the steps; the slopes, and what there was in the end."""
    every = max(1, steps // 120)
    seen: list[dict[str, float]] = []
    episodes: list[int] = []
    began = time.perf_counter()
    for number in range(1, steps + 1):
        stage.step(number)
        if number % every == 0:
            gc.collect()
            seen.append(count(folder))
            episodes.append(stage.episodes)
    slopes = {name: round(slope([one[name] for one in seen], episodes), 3) for name in BOUNDS}
    rest = seen[len(seen) // 3]
    grown = {name: round(seen[-1][name] - rest[name], 2) for name in seen[-1] if " of " in name}
    return {
        "steps": steps,
        "episodes": stage.episodes,
        "lost": stage.lost,
        "replays": stage.replays,
        "seconds": round(time.perf_counter() - began, 1),
        "per_1000_episodes": slopes,
        "at_first": {name: round(rest[name], 1) for name in (*BOUNDS, "text_mib")},
        "at_last": {name: round(seen[-1][name], 1) for name in (*BOUNDS, "text_mib")},
        "grown_by_process": {name: change for name, change in grown.items() if abs(change) >= 0.5},
        "text_bytes_per_episode": round(MIB * seen[-1]["text_mib"] / max(1, stage.episodes)),
        "grew": [name for name, bound in BOUNDS.items() if slopes[name] > bound],
    }


def compose(policy: str, folder: Path, environment: dict[str, Any]) -> DictConfig:
    """The embedded recipe, in this folder, with these desktops."""
    from hydra import compose, initialize_config_dir

    fixed = ["hydra.searchpath=[pkg://verl.trainer.config]", f"actor_rollout_ref.model.path={policy}"]
    fixed += [
        f"run_dir={folder}",
        f"++gui_agent.trajectory_budget_bytes={RECORDS_MIB * MIB}",
        "trainer.logger=[console]",
    ]
    fixed += ["trainer.v1.sampler.sampler_kwargs.poll_interval_s=0.02", f"actor_rollout_ref.rollout.n={SESSIONS}"]
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        config = compose("embedded", overrides=fixed)
    OmegaConf.set_struct(config, False)
    config.environment = OmegaConf.merge(config.environment, environment)
    OmegaConf.resolve(config)
    return config


def phases(steps: int, embedded_steps: int) -> Iterator[tuple[str, int, dict[str, Any], list[Task]]]:
    """Both kinds of desktops, with how many steps are played on them."""
    clicks = [
        Task(f"click-{number}", f"Click the red square, {number}.", {"id": f"click-{number}"}) for number in range(32)
    ]
    # Each desktop breaks at its 301st action and is replaced by one that does.
    fake = {
        "provider": "fake",
        "num_desktops": 4,
        "provider_options": {"fail": {"step": [301]}},
        "retry_backoff_s": 0.1,
    }
    yield "fake", steps, fake, clicks
    known = {task.task_id: task for task in load_tasks("embedded")}
    yield "embedded", embedded_steps, {"num_desktops": 4}, [known[task_id] for task_id in expert_task_ids()]


def main() -> int:
    parser = Arguments(__doc__, "twelve steps on fake desktops, three on embedded ones")
    parser.add_size("--steps", 1000, 12, "on fake desktops")
    parser.add_size("--embedded-steps", 40, 3, "on embedded ones")
    args = parser.parse()
    figures: dict[str, Any] = machine()
    with tempfile.TemporaryDirectory(prefix="arpo_verl-long-run-") as scratch:
        model = str(build_policy(Path(scratch) / "policy", size=PolicySize(num_layers=1, vision_depth=1)))
        for name, steps, environment, tasks in phases(args.steps, args.embedded_steps):
            if steps == 0:
                continue
            folder = Path(scratch, name)
            config = compose(model, folder, environment)
            ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
            import transfer_queue as tq

            try:
                backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
                tq.init(OmegaConf.create({"enable": True, "backend": backend}))
                figures[name] = measure(Stage(config, tasks), steps, folder)
                connect_pool(config).close()
                tq.close()
            finally:
                ray.shutdown()
    figures["bounds_per_1000_episodes"] = BOUNDS
    figures["grew"] = sorted(
        {*itertools.chain(*(figures[name]["grew"] for name in ("fake", "embedded") if name in figures))}
    )
    report(figures, args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
