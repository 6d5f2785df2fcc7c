"""What the recorder, the trainer's driver and the pool write is what the viewer reads."""

import asyncio
import dataclasses
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

import torch  # noqa: E402
from support.pictures import png  # noqa: E402

from arpo_verl.agent.rollout.episode import Episode, Turn  # noqa: E402
from arpo_verl.agent.rollout.scoring import Score  # noqa: E402
from arpo_verl.agent.rollout.sequence import EpisodeSequence  # noqa: E402
from arpo_verl.desktops.pool.status_file import HEARTBEAT_S, keep_status_file  # noqa: E402
from arpo_verl.records import live  # noqa: E402
from arpo_verl.records.documents import EpisodeRecord, live_document  # noqa: E402
from arpo_verl.records.episode_file import EpisodeKey
from arpo_verl.records.episode_folder import EpisodeFolder, write_episode  # noqa: E402
from arpo_verl.records.layout import GROUPS_FILE, POOL_FILE  # noqa: E402
from arpo_verl.records.recorded import read_episodes  # noqa: E402
from arpo_verl.records.run_records import GroupLog, LoggedRow  # noqa: E402
from arpo_verl.replay.labels import RowLabel  # noqa: E402
from arpo_verl.tools.viewer import documents  # noqa: E402
from arpo_verl.types import Click, EpisodeId, Point, Size, StopReason, Task  # noqa: E402

TASK = Task("press-ok", "Press OK.", {})
TURN = Turn("Action: click(start_box='(3,4)')", "press it", (Click(Point(30, 40)),))
ONE_ROW = (EpisodeSequence([1, 2], range(2)),)


def record(written, id, success=1.0, rows=ONE_ROW):
    """An episode of two turns, recorded as a rollout worker does."""
    turns = [dataclasses.replace(TURN, first_screenshot=row.screenshots.start) for row in rows]
    episode = Episode(
        task=TASK,
        rows=rows,
        images=(),
        screenshots=(png(), png("gray")),
        turns=(turns[0], turns[-1]),
        stop_reason=StopReason.FINISHED,
        success=success,
        generate_s=1.0,
        desktop_s=2.0,
        image_size=Size(96, 64),
        started_at=1_700_000_000.5,
        wall_s=3.5,
    )
    row = {"global_steps": id.step, "uid": id.uid, "session_id": id.session}
    content = EpisodeRecord.of_row(row, episode, Score(success), "desktop-1 on here")
    folder = write_episode(written.trajectories, content, episode.screenshots)
    return f"{folder.parent.name}/{folder.name}"


def test_a_recorded_episode_is_read(written, run):
    id = record(written, EpisodeId(7, "u-1", 2))
    (episode,) = run.snapshot().episodes
    assert (episode.id, episode.task_id, episode.key) == (id, "press-ok", EpisodeKey(7, "u-1", 2))
    assert (episode.success, episode.reward, episode.stop_reason) == (1.0, 1.0, "finished")
    assert (episode.num_turns, episode.screenshots, episode.validation) == (2, 2, None)
    assert (episode.started_at, episode.wall_s, episode.generate_s) == (1_700_000_000.5, 3.5, 1.0)
    document = documents.episode_document(run, run.snapshot(), id)
    assert document["turns"][1]["actions"][0]["point"] == [30, 40]
    assert (episode.num_rows, document["turns"][1]["first_screenshot"]) == (1, 0)


def test_an_episode_of_several_rows_is_read(written, run):
    rows = (EpisodeSequence([1, 2]), EpisodeSequence([1, 2, 3], range(1, 2)))
    for number, row in enumerate(rows):
        row.add_reply([7] * (number + 1), None)
    id = record(written, EpisodeId(7, "u-1", 2), rows=rows)
    (episode,) = run.episodes()
    assert (episode.num_rows, episode.num_turns) == (2, 2)
    document = documents.episode_document(run, run.snapshot(), id)
    assert [turn["first_screenshot"] for turn in document["turns"]] == [0, 1]
    assert (document["prompt_tokens"], document["response_tokens"]) == (5, 3)
    assert document["rows"][1] == {
        "prompt_tokens": 3,
        "response_tokens": 2,
        "reply_tokens": 2,
        "first_screenshot": 1,
        "num_screenshots": 1,
    }
    assert next(read_episodes(written.trajectories)).num_tokens == (5, 3)


def test_a_replay_that_the_trainer_logged_is_joined(written, run):
    """Trained on a step later than drawn, as an asynchronous trainer does; the replay has three rows."""
    source = record(written, EpisodeId(1, "u-0", 0))
    failed = record(written, EpisodeId(2, "u-1", 0), success=0.0)
    elsewhere = record(written, EpisodeId(2, "u-1", 1), success=0.0)
    log = GroupLog()
    rows = {
        "u-1_0_0": LoggedRow("press-ok", 0, 2, SimpleNamespace(step=1, episode=EpisodeId(1, "u-0", 0))),
        "u-1_1_0": LoggedRow("press-ok", 1, 2, SimpleNamespace(step=0, episode=None)),
    }
    log.open(written.trajectories / "step_000003" / GROUPS_FILE, 3, rows)
    keys = ("u-1_0_0", "u-1_0_1", "u-1_1_0", "u-1_0_2")
    labels = {position: RowLabel("u-1", key) for position, key in enumerate(keys)}
    log.write(labels, torch.tensor([1.0, 1.0, 0.5, 1.0]), torch.tensor([0.25, 0.25, -0.25, 0.25]))
    snapshot = run.snapshot()
    (group,) = run.groups()
    assert [(row.session, row.reward) for row in group.rows] == [(0, 1.0), (1, 0.5)]
    assert len(documents.episode_document(run, snapshot, failed)["group"]) == 2
    assert snapshot.training(source).replayed_into == (failed,)
    assert (snapshot.training(failed).advantage, snapshot.training(failed).replayed_by) == (None, source)
    assert (snapshot.training(elsewhere).replaced, snapshot.training(elsewhere).replayed_by) == (True, None)


def test_an_episode_being_recorded_is_seen(written, run):
    id = EpisodeId(4, "u-9", 1)
    folder = EpisodeFolder(written.trajectories, EpisodeRecord(id, "press-ok", {}).folder)
    folder.open()
    folder.write_live(live_document(id, TASK, "desktop-1 on here", time.time(), ()))
    folder.add_screenshot(png())
    folder.write_live(live_document(id, TASK, "desktop-1 on here", time.time(), (TURN,)))
    folder.add_screenshot(png())
    (running,) = documents.live_document(run)["running"]
    assert (running["task_id"], running["step"], running["session"]) == ("press-ok", 4, 1)
    assert (running["num_turns"], running["last_actions"][0]["action"]) == (1, "Click")
    assert running["screenshot"].endswith("/01.png")


def test_the_pools_state_is_seen_and_its_pause_is_no_end(written, run):
    async def written_once():
        writing = asyncio.create_task(keep_status_file(written.path / POOL_FILE, lambda: {"waiting": 2}))
        while not (written.path / POOL_FILE).exists():
            await asyncio.sleep(0.01)
        writing.cancel()

    asyncio.run(written_once())
    assert run.pool()["waiting"] == 2
    assert live.POOL_FRESH_S >= 2 * HEARTBEAT_S
