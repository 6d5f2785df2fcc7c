"""Reading a run's folder while somebody writes it."""

import json
import os
import shutil
import sys

import pytest
from support.pictures import png

from arpo_verl.errors import ConfigError, MissingDependencyError
from arpo_verl.records import listing, step_folders
from arpo_verl.records.run import open_run


@pytest.fixture
def reads(monkeypatch):
    """The names of the episode folders that were read."""
    names = []

    def read(folder):
        names.append(folder.name)
        return read_summary(folder)

    read_summary = step_folders.read_summary
    monkeypatch.setattr(step_folders, "read_summary", read)
    return names


OLDER = dict.fromkeys(("started_at", "wall_s", "validation", "session", "num_turns", "instruction"))


@pytest.mark.parametrize(
    ("content", "without", "summary"),
    [
        ({}, OLDER, {**OLDER, "session": 0, "num_turns": 2, "num_rows": 1, "instruction": ""}),
        ({"rows": [{}, {}, {}]}, (), {"num_rows": 3}),
        ({"rows": []}, (), {"num_rows": 0}),
        ({"rows": None}, (), {"num_rows": 1}),
        ({"reward": float("nan"), "wall_s": float("inf")}, (), {"reward": None, "wall_s": None}),
    ],
    ids=["older", "rows", "no rows", "null", "no numbers"],
)
def test_an_episode_lacks_what_it_did_not_record(written, run, content, without, summary):
    file = written.trajectories / written.episode(1, **content) / "episode.json"
    kept = {name: value for name, value in json.loads(file.read_text()).items() if name not in without}
    file.write_text(json.dumps(kept))
    (episode,) = run.snapshot().episodes
    assert {name: getattr(episode, name) for name in summary} == summary


def test_episodes_come_in_the_order_of_steps(written, run):
    ids = [written.episode(step, uid=f"u{step}") for step in (10, 9, 1000000)]
    assert [episode.id for episode in run.snapshot().episodes] == [ids[1], ids[0], ids[2]]


def test_only_new_episodes_are_read(written, run, reads):
    written.episode(1, uid="a")
    run.snapshot()
    written.episode(1, uid="b")
    written.episode(2, uid="c")
    assert len(run.snapshot().episodes) == 3
    assert sorted(reads) == ["press-ok__a_0", "press-ok__b_0", "press-ok__c_0"]
    assert run.snapshot() is run.snapshot()


def test_an_episode_within_the_time_stamp_of_the_last_look_is_found(written, run):
    written.episode(1, uid="a")
    step = written.folder(1, "press-ok__a_0").parent
    run.snapshot()
    before = step.stat().st_mtime_ns
    written.episode(1, uid="b")
    os.utime(step, ns=(before, before))
    assert len(run.snapshot().episodes) == 2


def test_a_session_that_was_played_anew_replaces_the_earlier_one(written, run):
    id = written.episode(1, success=0.0)
    assert run.snapshot().by_id[id].success == 0.0
    anew = written.trajectories / "step_000001" / ".anew"
    shutil.copytree(written.trajectories / id, anew)
    content = json.loads((anew / "episode.json").read_text())
    (anew / "episode.json").write_text(json.dumps({**content, "success": 1.0}))
    shutil.rmtree(written.trajectories / id)
    anew.rename(written.trajectories / id)
    assert run.snapshot().by_id[id].success == 1.0


def test_what_is_taken_away_later_is_gone(written, run):
    kept, gone = written.episode(1, screenshots=3), written.episode(2)
    os.utime(written.trajectories / kept, (1, 1))  # long before: time stamps of one moment may be equal
    assert run.snapshot().by_id[kept].screenshots == 3
    (written.trajectories / kept / "01.png").unlink()
    shutil.rmtree(written.trajectories / gone)
    snapshot = run.snapshot()
    assert [(id, episode.screenshots) for id, episode in snapshot.by_id.items()] == [(kept, 2)]
    assert not snapshot.broken


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "ValueError: Expecting value"),
        ('{"task_id": "a", "tur', "ValueError: Unterminated string"),
        ("[]", "ValueError: Expected `object`, got `array`"),
        ('{"task_id": 3}', "ValueError: Expected `str`, got `int` - at `$.task_id`, in /"),
        ('{"task_id": "a", "turns": [{"actions": [{"point": [1, "x"]}]}]}', "`$.turns[0].actions[0].point[1]`"),
        ('{"task_id": "a", "uid": null}', "`$.uid`"),
        ('{"task_id": "a", "wall_s": 1e101}', "`$.wall_s`"),
        ('{"task_id": "a", "step": 9007199254740992}', "`$.step`"),
        ("[" * 100_000, "ValueError: it is nested too deeply"),
        (b'{"task_id": "\xff"}', "can't decode byte 0xff"),
    ],
)
def test_a_broken_episode_is_told_and_costs_no_other(written, run, content, reason):
    written.episode(1, uid="good")
    broken = written.folder(1, "press-ok__bad_0")
    (broken / "episode.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    snapshot = run.snapshot()
    assert reason in snapshot.broken["step_000001/press-ok__bad_0"]
    assert [episode.uid for episode in snapshot.episodes] == ["good"]
    assert list(snapshot.broken) == ["step_000001/press-ok__bad_0"]


def test_a_broken_episode_is_read_once_it_is_whole(written, run):
    id = written.episode(1)
    file = written.trajectories / id / "episode.json"
    whole = file.read_text()
    for broken in (whole[:100], None):
        file.unlink() if broken is None else file.write_text(broken)
        assert list(run.snapshot().broken) == [id]
        file.write_text(whole)
        snapshot = run.snapshot()
        assert snapshot.by_id[id].success == 1.0 and not snapshot.broken


def test_what_is_being_played_is_no_episode_yet(written, run):
    written.live(1)
    (written.path / "metrics.jsonl").touch()
    snapshot = run.snapshot()
    assert not snapshot.episodes and not snapshot.broken and run.metrics().steps == ()


def test_a_selection_knows_no_other_episode(written, run):
    kept = written.episode(2, uid="a", session=0)
    other = written.episode(1, uid="b", session=0)
    written.group(2, "a", {"session": 0, "reward": 1, "advantage": 2, "replay": {"step": 1, "uid": "b", "session": 0}})
    whole = run.snapshot()
    assert whole.training(kept).replayed_by == other
    part = run.select(lambda episode: episode.step == 2)
    assert list(part.by_id) == [kept]
    assert part.training(kept).replayed_by is None
    assert part.training(kept).replaced


def test_a_run_opens_by_its_trajectories_too_and_another_path_is_refused(written, tmp_path):
    written.episode(1)
    written.metrics(1, loss=2.0)
    run = open_run(written.trajectories)
    assert (run.name, len(run.snapshot().episodes), run.metrics().steps) == ("a-run", 1, (1,))
    (tmp_path / "file").write_bytes(png())
    refused = {"": "which has neither; runs in it: .*a-run", "none": "which is not there", "file": "which is a file"}
    for name, why in refused.items():
        with pytest.raises(ConfigError, match=why):
            open_run(tmp_path / name)


EPISODE = "step_000001/press-ok__u1_0"


@pytest.mark.parametrize(
    "id",
    [
        *("", "x/y", "../x", "step_000001", "step_000001/", "step_000001/.", "step_000001/..", f"{EPISODE}/"),
        *(f"{EPISODE}/../press-ok__u1_0", f"step_000001/../{EPISODE}", f"{EPISODE}\0", "/" + EPISODE),
    ],
)
def test_an_id_leads_to_no_other_folder(written, run, id):
    assert written.episode(1) == EPISODE
    with pytest.raises(KeyError):
        run.folder(id)


def test_a_link_leads_out_of_no_run(written, run, tmp_path):
    written.episode(1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (written.trajectories / "step_000001" / "link__u_0").symlink_to(outside)
    (written.trajectories / "step_000009").symlink_to(written.trajectories / "step_000001")
    with pytest.raises(KeyError):
        run.folder("step_000001/link__u_0")
    snapshot = run.snapshot()
    assert len(snapshot.episodes) == 1
    assert not snapshot.broken


def test_a_disk_that_fails_for_a_while_takes_nothing_back(written, run, monkeypatch):
    written.episode(1)
    run.snapshot()
    written.episode(2)

    def fail(_):
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as failing:
        failing.setattr(listing.os, "scandir", fail)
        assert len(run.snapshot().episodes) == 1
    assert len(run.snapshot().episodes) == 2


def test_episodes_groups_and_metrics_are_typed_values_and_data_frames(written, run):
    failed, solved = written.episode(1, session=0, success=0.0), written.episode(1, session=1, success=1.0)
    replay = {"step": 0, "uid": "u0", "session": 3}
    rows = [{"session": 0, "reward": 1.0, "advantage": 0.5, "replay": replay}]
    written.group(1, "u1", *rows, {"session": 1, "reward": 1.0, "advantage": -0.5})
    written.metrics(1, rollout__success_mean=0.5)
    written.metrics(2, rollout__success_mean=0.75, actor__entropy=0.1)

    assert [episode.id for episode in run.episodes()] == [failed, solved]
    (group,) = run.groups()
    assert (group.uid, group.task_id, group.step) == ("u1", "press-ok", 1)
    assert [(row.session, row.advantage, row.replaced) for row in group.rows] == [(0, 0.5, True), (1, -0.5, False)]

    episodes, groups, metrics = (table.to_pandas() for table in (run.episodes(), run.groups(), run.metrics()))
    assert list(episodes["success"]) == [0.0, 1.0] and list(episodes["task_id"]) == ["press-ok"] * 2
    assert list(groups["advantage"]) == [0.5, -0.5] and list(groups["uid"]) == ["u1"] * 2
    assert list(metrics.index) == [1, 2] and list(metrics["rollout/success_mean"]) == [0.5, 0.75]
    assert metrics["actor/entropy"].isna().tolist() == [True, False]


def test_without_pandas_a_data_frame_is_refused_with_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        run.episodes().to_pandas()
