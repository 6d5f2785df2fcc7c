"""Evaluations on fake desktops. As a program: one start of one, which may kill itself.

python -m support.evaluation_run OUT [KILL_AT]     at the beginning of its KILL_AT-th episode
"""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.records.documents import folder_of
from arpo_verl.tools.evaluation import runner
from arpo_verl.tools.evaluation.folder import uid_of
from arpo_verl.tools.evaluation.policy import Sampling
from arpo_verl.tools.evaluation.runner import EvaluationSettings
from arpo_verl.tools.evaluation.schedule import EachRun
from arpo_verl.types import EpisodeId, Size, Task
from support.fake_pool import DONE, HIT, FakePool

TASKS = [Task(name, f"Do {name}.", {"id": name}, "os") for name in ("a", "b", "c", "d")]
RUNS = 3
DRAWN = Sampling()


class Scripted:
    """A policy that says the same in each episode; `begun` sees every trial."""

    facts = {"model": "scripted"}

    def __init__(self, replies=(HIT, DONE), begun=lambda trial: None):
        self.replies = replies
        self.begun = begun

    def conversation(self, config, sampling, trial):
        self.begun(trial)
        return ScriptedConversation(replies_of(self.replies), Size(364, 252))


def settings(budgets=(4,), desktops=2, sampling=DRAWN, agent=None, **environment):
    environment = {"provider": "fake", "num_desktops": desktops, "retry_backoff_s": 0, **environment}
    agent = GuiAgentConfig(**{"model_family": "small", "max_reply_tokens": 64, **(agent or {})})
    return EvaluationSettings(EnvironmentConfig(**environment), agent, budgets, sampling)


@contextmanager
def pool_of(pool):
    """Have evaluations play on this pool."""

    @contextmanager
    def own_pool(config):
        yield pool

    real, runner.own_pool = runner.own_pool, own_pool
    try:
        yield pool
    finally:
        runner.own_pool = real


def play(out, policy, *scripts, tasks=TASKS, runs=RUNS, **values):
    """One start; returns what the folder then holds."""
    chosen = settings(**values)
    scheduler = EachRun([task.task_id for task in tasks], runs, chosen.budgets)
    with pool_of(FakePool(*scripts)):
        return runner.evaluate(out, tasks, scheduler, policy, chosen)


def record(folder, trial, **content):
    """An episode as the recorder leaves it."""
    place = folder.trajectories / folder_of(EpisodeId(0, uid_of(trial), trial.run), trial.task_id)
    place.mkdir(parents=True)
    values = {"task_id": trial.task_id, "uid": uid_of(trial), "session": trial.run, "num_turns": 3}
    values |= {"stop_reason": "finished", "success": 1.0, **content}
    (place / "episode.json").write_text(json.dumps(values))
    return place


def main(out, kill_at):
    begun = []

    def note(trial):
        begun.append(trial)
        with open(out / "begun.log", "a") as file:
            file.write(f"{os.getpid()} {trial.task_id} {trial.run}\n")
        if len(begun) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    play(out, Scripted(begun=note))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(exist_ok=True)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
