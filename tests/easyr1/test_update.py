"""One update by EasyR1's own actor and loss, of replies that our engine had written: without Ray, desktop or GPU."""

import asyncio
import json

import pytest
from support.easyr1 import require_easyr1

require_easyr1()

from easyr1.cpu_worker import LOG, CpuWorker  # noqa: E402
from easyr1.test_fit import OPTIONS  # noqa: E402
from verl.trainer.ray_trainer import compute_advantage  # noqa: E402

from arpo_verl.agent.models.family import load_family  # noqa: E402
from arpo_verl.easyr1.command import stock_config  # noqa: E402
from arpo_verl.easyr1.engine import TurnEngine  # noqa: E402
from arpo_verl.easyr1.estimator import register_estimator  # noqa: E402
from arpo_verl.easyr1.images import FILE, shows_files  # noqa: E402
from arpo_verl.easyr1.rows import Row, make_batch  # noqa: E402
from arpo_verl.easyr1.settings import read_config  # noqa: E402
from arpo_verl.records.run_records import GroupLog  # noqa: E402
from arpo_verl.replay.config import ReplayConfig  # noqa: E402
from arpo_verl.types import Observation, Size  # noqa: E402


@pytest.fixture
def worker(monkeypatch, tmp_path, policy_folder):
    monkeypatch.setenv("DISABLE_WORKER_INIT", "1")
    monkeypatch.setenv(LOG, str(tmp_path / "calls.jsonl"))
    model = f"worker.actor.model.model_path={policy_folder}"
    worker = CpuWorker(stock_config(read_config([*OPTIONS, f"run_dir={tmp_path}", model])).worker, "actor_rollout_ref")
    monkeypatch.setattr(CpuWorker, "world_size", 1, raising=False)
    worker.init_model()
    worker.prepare_rollout_engine()
    return worker


def test_replies_become_rows_that_move_the_weights_and_a_fault_moves_none(worker, loaded, chat, screenshot, tmp_path):
    prompt = chat.prompt(load_family("small").opening("Press Yes.", "English", ()), Size(640, 480))
    image = asyncio.run(shows_files(chat.geometry)(Observation(screenshot())))

    async def play():
        async with TurnEngine(worker, chat, 96, {}, 2.0).running() as engine:
            return await asyncio.gather(*[engine.generate(prompt, [image], 96) for _ in range(5)])

    rows = {"b_2_0": Row.of_fault(chat)}
    for number, reply in enumerate(asyncio.run(play())):
        ids, reward = list(reply.token_ids), float(number % 3 == 0)
        rows[f"{'ab'[number // 3]}_{number % 3}_0"] = Row(prompt, ids, [1] * len(ids), reward, [image.info[FILE]])
    batch = make_batch(rows, loaded[1], chat, 512, 1536, fps=2.0)
    batch = batch.union(worker.compute_log_probs(batch))
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    register_estimator(ReplayConfig(), GroupLog())
    worker.update_actor(compute_advantage(batch, "grpo"))
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    update = next(call for call in calls if call["call"] == "update")
    advantages = dict(zip(update["uids"], update["advantages"], strict=True))
    assert advantages["a_0_0"] == pytest.approx(2**0.5, abs=1e-4) and advantages["b_0_0"] == pytest.approx(1, abs=1e-4)
    assert advantages["b_2_0"] == 0 and update["moved"] > 0
