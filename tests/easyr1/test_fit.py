"""EasyR1's own trainer on embedded desktops: four steps with replays, two lost episodes and validation, killed behind a
checkpoint and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from support.easyr1 import require_easyr1

require_easyr1()

from easyr1.cpu_worker import LOG, TEMPERATURES  # noqa: E402
from easyr1.faulty_desktop import COUNTED, FAILING  # noqa: E402

from arpo_verl.records.metrics_files import MetricsFiles  # noqa: E402
from arpo_verl.replay.groups import uid_of  # noqa: E402
from arpo_verl.replay.store.persistence import load_store  # noqa: E402

pytestmark = pytest.mark.easyr1
HERE = Path(__file__).parent
OPTIONS = """
    config=easyr1/embedded gui_agent.model_family=small gui_agent.max_reply_tokens=96 gui_agent.max_steps=6
    environment.num_desktops=4 environment.provider=faulty_desktop:FaultyDesktop environment.max_attempts=1
    data.val_files=embedded data.rollout_batch_size=2 data.max_prompt_length=512
    data.max_response_length=1536 worker.rollout.n=3 worker.rollout.limit_images=6 worker.rollout.temperature=0.4
    worker.actor.global_batch_size=2 worker.actor.micro_batch_size_per_device_for_experience=1
    worker.actor.padding_free=false worker.actor.dynamic_batching=false worker.actor.use_torch_compile=false
    worker.actor.optim.lr=1e-5 trainer.n_gpus_per_node=1 trainer.max_steps=4 trainer.save_freq=1
    trainer.val_freq=4 trainer.val_before_train=true trainer.save_limit=-1
    worker.rollout.val_override_config.temperature=0.1
    data.tasks.ids=[dialog-confirm-no,dialog-confirm-yes]
    ray_kwargs.ray_init.address=local ray_kwargs.ray_init.num_gpus=1 ray_kwargs.ray_init.num_cpus=8
    ray_kwargs.ray_init.include_dashboard=false
""".split()
END_S = 1500


class Run:
    """A run's folder, and the processes that train in it."""

    def __init__(self, folder, policy):
        self.folder, self.log, self.verdicts = folder, folder / "calls.jsonl", folder / "verdicts"
        self.verdicts.mkdir()
        self.options = [*OPTIONS, f"run_dir={folder}", f"worker.actor.model.model_path={policy}"]

    def start(self, temperatures, *more):
        paths = os.pathsep.join([str(HERE / "stand_in"), str(HERE), os.environ.get("PYTHONPATH", "")])
        env = {
            **os.environ,
            LOG: str(self.log),
            TEMPERATURES: temperatures,
            COUNTED: str(self.verdicts),
            FAILING: "1,5",  # the first of validation, and one of the first step
            "PYTHONPATH": paths,
            "OMP_NUM_THREADS": "1",
            "RAY_worker_register_timeout_seconds": "600",
        }
        output = (self.folder / "output.log").open("ab")
        command = [sys.executable, str(HERE / "on_cpu.py"), *self.options, *more]
        return subprocess.Popen(command, stdout=output, stderr=output, env=env, start_new_session=True)

    def calls(self, call):
        lines = self.log.read_text().splitlines() if self.log.is_file() else []
        return [one for one in map(json.loads, lines) if one["call"] == call]

    def wait(self, process, event):
        deadline = time.monotonic() + END_S
        while not event():
            assert process.poll() is None and time.monotonic() < deadline, self.tail()
            time.sleep(0.2)

    def tail(self):
        return (self.folder / "output.log").read_text(errors="replace")[-6000:]

    def metrics(self):
        files = MetricsFiles(self.folder)
        files.refresh()
        return files.by_step()

    def groups(self, step):
        text = (self.folder / "trajectories" / f"step_{step:06d}" / "groups.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory, policy_folder):
    """Killed while it plays the step behind the second checkpoint, then resumed to its end."""
    run = Run(tmp_path_factory.mktemp("run"), policy_folder)
    first = run.start("0.4,6,0.4,0.4")  # the second step fails whole, on purpose
    try:
        run.wait(first, lambda: 2 in run.metrics())  # they are written behind the checkpoint
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    run.updates_before = len(run.calls("update"))
    second = run.start("6,0.4")  # the third step too
    assert second.wait(END_S) == 0, run.tail()
    return run


def test_four_steps_are_trained_and_their_metrics_are_one_curve(run):
    metrics = run.metrics()
    assert list(metrics) == [0, 1, 2, 3, 4]
    steps = [metrics[step] for step in (1, 2, 3, 4)]
    assert all("actor/pg_loss" in step and "critic/advantages/max" in step for step in steps)
    assert all(step["environment/episodes"] >= 3 for step in steps if "environment/episodes" in step)


def test_an_episode_that_infrastructure_failed_is_a_row_that_teaches_nothing(run):
    metrics, update = run.metrics(), run.calls("update")[0]
    lost = [row for row, replied in enumerate(update["replied"]) if replied == 0]
    assert len(lost) == metrics[1]["rollout/dropped"] >= 1  # a busy machine may lose one more
    assert all(update["advantages"][row] == update["scores"][row] == 0 for row in lost) and update["moved"] > 0
    assert sum(len(group["rows"]) for group in run.groups(1)) == 6 - len(lost)


def test_validation_is_played_before_a_start_and_at_its_steps_by_its_own_sampling_and_trains_nothing(run):
    metrics = run.metrics()
    validated = {step: one for step, one in metrics.items() if "val/reward_score" in one}
    assert list(validated) == [0, 2, 4]  # the second start begins at 2
    assert validated[0]["val/dropped"] >= 1
    temperatures = [call["meta"].get("temperature") for call in run.calls("generate")]
    assert set(temperatures) == {0.1, None} and temperatures[0] == 0.1
    assert len(run.calls("update")) == run.updates_before + 2
    records = [json.loads(path.read_text()) for path in (run.folder / "trajectories").glob("step_*/*/episode.json")]
    dropped = sum(one["val/dropped"] for one in validated.values())
    assert sum(one["validation"] is True for one in records) == 3 * 2 - dropped


def test_every_row_has_a_uid_of_its_own_and_every_group_its_rollouts(run):
    for update in run.calls("update"):
        assert len(set(update["uids"])) == 6
        assert set(Counter(map(uid_of, update["uids"])).values()) == {3}


def test_a_group_that_failed_whole_gets_a_past_success_and_its_advantages(run):
    metrics = run.metrics()
    assert metrics[1]["replay/stored"] > 0
    assert metrics[2]["replay/groups_all_failed"] == 2 and metrics[2]["replay/injected"] > 0
    replays = [row for group in run.groups(2) for row in group["rows"] if row["replay"]]
    assert len(replays) == metrics[2]["replay/injected"]
    for row in replays:
        assert row["replay"]["step"] == 1 and row["reward"] == 1.0
    replayed = [group for group in run.groups(2) if any(row["replay"] for row in group["rows"])]
    for group in replayed:
        assert sorted(round(row["advantage"], 2) for row in group["rows"]) == [-0.71, -0.71, 1.41]
    update = run.calls("update")[1]
    assert max(update["advantages"]) > 1 and update["moved"] > 0


def test_a_killed_run_resumes_with_weights_and_store(run):
    assert run.updates_before >= 2
    (load,) = run.calls("load")
    saved = next(one for one in run.calls("save") if one["path"] == load["path"])
    assert "global_step_2" in load["path"] and load["weights"] == pytest.approx(saved["weights"], rel=1e-9)
    metrics = run.metrics()
    assert metrics[3]["replay/injected"] > 0 and metrics[3]["replay/groups_all_failed"] == 2
    assert {row["replay"]["step"] for group in run.groups(3) for row in group["rows"] if row["replay"]} == {1}
    stores = [run.folder / "checkpoints" / f"global_step_{step}" / "replay" for step in (1, 2, 3, 4)]
    sizes = [len(load_store(store, None)) for store in stores]
    assert all(before <= after for before, after in pairwise(sizes)) and sizes[0] > 0


def test_replies_are_asked_for_together_with_one_picture_a_screenshot(run):
    calls = run.calls("generate")
    assert any(call["prompts"] > 1 for call in calls)
    assert {count for call in calls for count in call["images"]} <= set(range(1, 7))
    assert all(call["meta"]["n"] == 1 and call["meta"]["max_tokens"] == 96 for call in calls)


def test_the_runs_folder_is_one_that_the_viewer_reads(run):
    from arpo_verl.records.run import open_run

    opened = open_run(run.folder)
    assert opened is not None
    recorded = [path for path in (run.folder / "trajectories").glob("step_*/*/episode.json")]
    assert len(recorded) >= 4 * 6
