"""A run that is cut in its second and third epoch plays, replays and records what an unbroken one does."""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from support.queue_rows import advantages_of, replayed_keys
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.dataset.rl_dataset import collate_fn

from arpo_verl.tasks.loader import shipped_ids

pytestmark = pytest.mark.release
STEPS = 6
IDS = ",".join(shipped_ids()[:5])
"""Two tasks a step: an epoch is two steps and leaves one task out."""


class Run:
    """A start of a run in this process: veRL's own loader, checkpoints and queue; its rollouts are written out."""

    def __init__(self, folder, compose, model_path, tq, rollouts):
        self.folder, self.tq, self.rollouts = folder, tq, rollouts
        data = ["data.train_files=embedded", f"+data.tasks.ids=[{IDS}]", "data.shuffle=true", "data.seed=3"]
        data += ["data.custom_cls.path=pkg://arpo_verl.plugin.dataset", "data.custom_cls.name=TaskDataset"]
        run = ["trainer.resume_mode=auto", f"trainer.default_local_dir={folder}", "data.train_batch_size=2"]
        run += [f"+gui_agent.trajectory_dir={folder / 'trajectories'}", f"actor_rollout_ref.model.path={model_path}"]
        run += ["+trainer.checkpoint_callback_class=arpo_verl.plugin.checkpoints.ReplayCheckpointCallback"]
        self.config = compose(*data, *run)
        self.replaying = trainer_base.PPOTrainer._build_replay_buffer(
            SimpleNamespace(config=self.config, trainer_mode="sync", _add_prompts_to_generate=None)
        )
        self.rows = create_rl_dataset("embedded", self.config.data, None, None, True, -1)
        self.loader = trainer_base.StatefulDataLoader(
            dataset=self.rows,
            batch_size=2,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=create_rl_sampler(self.config.data, self.rows),
        )
        note = folder / "latest_checkpointed_iteration.txt"
        self.step = int(note.read_text()) if note.exists() else 0
        if self.step:
            self.loader.load_state_dict(torch.load(self.checkpoint / "data.pt", weights_only=False))
        self.train_dataloader_it = None
        self.train_dataloader = self.loader

    @property
    def checkpoint(self):
        return self.folder / f"global_step_{self.step}"

    def train(self, last):
        callback = build_checkpoint_callback(self.config)
        while self.step < last:
            self.step += 1
            batch = trainer_base.PPOTrainer._fetch_one_gen_batch(self)
            for place, info in enumerate(batch["extra_info"]):
                rng = random.Random(f"{self.step} {info['task_id']}")
                scores = [float(self.step < 3 and rng.random() < 0.5) for _ in range(2)]
                played = [self.rollouts.output(info["task_id"], score, seed=rng.randrange(99)) for score in scores]
                own = {name: info[name] for name in ("index", "instruction", "spec")}
                self.rollouts.put(f"{self.step}x{place}", played, self.step, **own)
            sampled, _ = self.replaying.sample(self.step, "train", 2)
            self.replays = replayed_keys(sampled)
            advantages_of(self.tq, sampled, self.config)
            self.checkpoint.mkdir(parents=True)
            torch.save(self.loader.state_dict(), self.checkpoint / "data.pt")
            (self.folder / "latest_checkpointed_iteration.txt").write_text(str(self.step))
            trainer = SimpleNamespace(replay_buffer=self.replaying, train_dataset=self.rows)
            callback.on_save(trainer=trainer, global_step=self.step, checkpoint_dir=str(self.checkpoint))
            self.tq.kv_clear(keys=sampled.keys, partition_id="train")

    def recorded(self):
        steps = [self.folder / "trajectories" / f"step_{step:06d}" / "groups.jsonl" for step in range(1, STEPS + 1)]
        return [sorted(map(json.loads, step.open()), key=lambda group: group["uid"]) for step in steps]


def test_a_cut_run_trains_on_what_an_unbroken_one_does(compose, model_path, empty_queue, rollouts, tmp_path):
    def trained(name, *ends):
        for end in ends:
            run = Run(tmp_path / name, compose, model_path, empty_queue, rollouts)
            run.train(end)
        return run.recorded()

    unbroken = trained("unbroken", STEPS)
    assert trained("cut", 3, 4, 5, STEPS) == unbroken
    played = [[group["task_id"] for group in step] for step in unbroken]
    assert all(len({*one, *other}) == 4 for one, other in zip(played[::2], played[1::2], strict=True))
    assert sum(row["replay"] is not None for step in unbroken[2:] for group in step for row in group["rows"]) >= 3
