"""docs/trajectories.md says what is written."""

import contextlib
import io
import json

import torch
from support import documents
from support.loop_harness import DONE, HIT, FakePool, ScriptedEngine, play, recipe

from arpo_verl.desktops.pool.metrics import PoolMetrics
from arpo_verl.desktops.pool.status_file import pool_document
from arpo_verl.records.run_records import GroupLog, LoggedRow
from arpo_verl.replay.labels import RowLabel
from arpo_verl.replay.trajectory import StoredTrajectory

TEXT = documents.page("docs/trajectories.md")


def record(policy, run):
    """An episode in `run`, and the group that it was trained in: its row was given to a replay."""
    config = recipe({"trajectory_dir": str(run / "trajectories")})
    play(policy, ScriptedEngine(policy[0], [HIT, DONE]), FakePool(), config)
    log, key = GroupLog(), "u-1_2_0"
    replay = StoredTrajectory("click-it", 3, 1.0, 1.0, [1], [2], [1], None, ())
    path = run / "trajectories" / "step_000012" / "groups.jsonl"
    log.open(path, 12, {key: LoggedRow("click-it", 2, 12, replay)})
    log.write({0: RowLabel("u-1", key)}, torch.ones(1), torch.tensor([1.5]))
    return path


def test_it_names_every_field(policy, tmp_path, monkeypatch):
    live = []
    writing = "arpo_verl.records.episode_folder.EpisodeFolder.write_live"
    monkeypatch.setattr(writing, lambda self, document: live.append(document))
    groups = record(policy, tmp_path)
    episode = json.loads(next(tmp_path.rglob("episode.json")).read_text())
    (reply, *_) = json.loads(next(tmp_path.rglob("tokens.json")).read_text())
    group = json.loads(groups.read_text())
    names = {*episode, *episode["turns"][0], *reply, *live[-1], *group} | {
        f"rows[].{name}" for name in group["rows"][0]
    }

    class OneSlot:
        generations = {0: 1}
        leased = {}

        def host_of(self, slot):
            return None

    pool = {"time": 0.0, **pool_document(OneSlot(), OneSlot(), PoolMetrics(1), {})}
    names |= {*pool} | {f"desktops[].{name}" for name in pool["desktops"][0]}
    assert sorted(name for name in names if f"`{name}`" not in TEXT) == []


def test_its_example_reads_a_run(policy, tmp_path, monkeypatch):
    with record(policy, tmp_path / "runs" / "embedded").open("a") as groups:
        groups.write('{"uid": "u-')
    monkeypatch.chdir(tmp_path)
    (example,) = documents.code("docs/trajectories.md")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(example, {})  # noqa: S102
    assert out.getvalue() == "12 click-it 1.0 advantage +1.50, in its place a replay\n"
