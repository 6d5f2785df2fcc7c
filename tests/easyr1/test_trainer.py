"""EasyR1's own `fit()` in this process: real updates, checkpoints and validation, of episodes that are written out."""

import asyncio
import copy
import json
from types import SimpleNamespace

import pytest
from support.easyr1 import require_easyr1

require_easyr1()

from easyr1.cpu_worker import LOG, CpuWorker  # noqa: E402
from easyr1.test_fit import OPTIONS  # noqa: E402

from arpo_verl.agent.models.messages import screenshot_message  # noqa: E402
from arpo_verl.agent.rollout.episode import Episode  # noqa: E402
from arpo_verl.agent.rollout.scoring import Score  # noqa: E402
from arpo_verl.agent.rollout.sequence import EpisodeSequence  # noqa: E402
from arpo_verl.easyr1 import stock  # noqa: E402
from arpo_verl.easyr1.command import stock_config  # noqa: E402
from arpo_verl.easyr1.episodes import Played  # noqa: E402
from arpo_verl.easyr1.images import shows_files  # noqa: E402
from arpo_verl.easyr1.settings import read_config  # noqa: E402
from arpo_verl.easyr1.trainer import ArpoTrainer, checkpoints_until, task_loader  # noqa: E402
from arpo_verl.records.layout import GROUPS_FILE, step_folder  # noqa: E402
from arpo_verl.records.metrics_files import MetricsFiles  # noqa: E402
from arpo_verl.tasks.loader import shipped_ids  # noqa: E402
from arpo_verl.tasks.selection import load_selected_tasks  # noqa: E402
from arpo_verl.types import Observation, Size, StopReason  # noqa: E402

SMALL = ["data.max_prompt_length=300", "data.max_response_length=16", "trainer.val_freq=2"]
FAILED = [0.0, 0.0, 0.0]
SUCCESSES = {
    "validation": [None, 1.0],
    1: [1.0, 0.0, None, *FAILED],
    2: [*FAILED, *FAILED],
    3: [*FAILED, *FAILED],
}
"""By step, what each episode of its two tasks comes to; None: infrastructure failed it."""


class Player:
    """Plays episodes of one reply."""

    def __init__(self, chat, png):
        self.asked, self.successes = [], SUCCESSES
        self._prompt, self._png = chat.prompt([screenshot_message()], Size(640, 480)), png
        self._image = asyncio.run(shows_files(chat.geometry)(Observation(png)))
        self._reply = (20, chat.end_id)

    async def play(self, tasks, rollouts, step, engine, validates=False):
        self.asked.append((step, validates, rollouts, engine._meta.get("temperature")))
        successes = iter(self.successes["validation" if validates else step])
        return [
            self._played(task, f"{task.task_id}{step}{validates}_{number}_0", next(successes))
            for task in tasks
            for number in range(rollouts)
        ]

    def _played(self, task, key, success):
        if success is None:
            return Played(key, task, None, None)
        row = EpisodeSequence(self._prompt)
        row.add_reply(self._reply, None)
        took = dict(turns=(), stop_reason=StopReason.FINISHED, generate_s=0.0, desktop_s=0.0, image_size=Size(28, 28))
        episode = Episode(task, (row,), (self._image,), (self._png,), success=success, **took)
        return Played(key, task, episode, Score(success))


@pytest.fixture
def start(monkeypatch, tmp_path, policy_folder, loaded, chat, screenshot):
    """(step, *options, successes) -> its player: starts the run, or resumes it, and trains up to this step."""
    monkeypatch.setenv("DISABLE_WORKER_INIT", "1")
    monkeypatch.setenv(LOG, str(tmp_path / "calls.jsonl"))
    monkeypatch.setattr(CpuWorker, "world_size", 1, raising=False)

    def train(max_steps, *options, successes=SUCCESSES):
        model = f"worker.actor.model.model_path={policy_folder}"
        steps = f"trainer.max_steps={max_steps}"
        door = read_config([*OPTIONS, *SMALL, f"run_dir={tmp_path}", model, steps, *options])
        config = stock_config(door)
        trainer = ArpoTrainer(
            door,
            SimpleNamespace(metrics=dict),
            load_selected_tasks(door.val_files, door.tasks),
            train_dataloader=task_loader(door, config.data),
            config=config,
            tokenizer=loaded[0],
            processor=loaded[1],
            role_worker_mapping={},
            resource_pool_manager=stock.ResourcePoolManager({"global_pool": [1]}, {}),
        )
        trainer.actor_rollout_ref_wg = CpuWorker(copy.deepcopy(config.worker), "actor_rollout_ref")
        trainer.actor_rollout_ref_wg.init_model()
        trainer._player = player = Player(chat, screenshot())
        player.successes = successes
        trainer.fit()
        return player

    return train


def test_it_validates_loses_episodes_replays_and_resumes(start, tmp_path):
    first = start(2)
    assert first.asked == [(0, True, 1, 0.1), (1, False, 3, None), (2, False, 3, None), (2, True, 1, 0.1)]
    second = start(3)
    assert [asked[:2] for asked in second.asked] == [(2, True), (3, False), (3, True)]  # 3: behind the last step
    files = MetricsFiles(tmp_path)
    files.refresh()
    metrics = files.by_step()
    assert {step: one["val/dropped"] for step, one in metrics.items() if "val/dropped" in one} == {0: 1, 2: 1, 3: 1}
    assert all(metrics[step]["val/reward_score"] == 1.0 for step in (0, 2, 3))
    assert [metrics[step]["rollout/dropped"] for step in (1, 2, 3)] == [1, 0, 0]
    assert [metrics[step]["replay/injected"] for step in (1, 2, 3)] == [0, 1, 1]  # 3: out of the checkpoint's store
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    update = next(call for call in calls if call["call"] == "update")
    lost = update["replied"].index(0)
    assert sorted(update["replied"]) == [0, *[2] * 5] and update["moved"] > 0
    assert update["advantages"][lost] == update["scores"][lost] == 0
    assert sorted(update["advantages"]) == pytest.approx([-1, 0, 0, 0, 0, 1], abs=1e-4)


EPOCHS = [f"data.tasks.ids=[{','.join(sorted(shipped_ids())[:5])}]", "trainer.val_freq=-1"]
EPOCHS += ["trainer.val_before_train=false"]
"""Five tasks, two a step: an epoch is two steps and leaves one task out."""
SOLVED = {"validation": [1.0] * 5, 1: [1.0, *[0.0] * 5], 2: [*FAILED, 1.0, 0.0, 0.0]}
SOLVED |= dict.fromkeys(range(3, 7), [0.0] * 6)


def test_a_run_that_is_cut_in_its_second_and_third_epoch_plays_and_records_what_an_unbroken_one_does(start, tmp_path):
    def trained(name, *ends):
        for end in ends:
            start(end, *EPOCHS, f"run_dir={tmp_path / name}", successes=SOLVED)
        return [
            [json.loads(line) for line in (tmp_path / name / "trajectories" / step_folder(step) / GROUPS_FILE).open()]
            for step in range(1, 7)
        ]

    unbroken = trained("unbroken", 6)
    assert trained("cut", 3, 4, 5, 6) == unbroken
    played = [[group["task_id"] for group in step] for step in unbroken]
    assert all(len({*one, *other}) == 4 for one, other in zip(played[::2], played[1::2], strict=True))
    assert played[:2] != played[2:4]
    assert any(row["replay"] for step in unbroken[4:] for group in step for row in group["rows"])


def test_what_is_no_checkpoint_is_passed_over(tmp_path):
    for name in ("global_step_2", "global_step_10", "global_step_3.bak", "global_step_4"):
        (tmp_path / name).mkdir()
    assert [folder.name for folder in checkpoints_until(tmp_path, 4)] == ["global_step_4", "global_step_2"]
