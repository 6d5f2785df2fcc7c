"""The documents that the page gets."""

import json
import shutil

import pytest

from arpo_verl.records.json_files import dump_json
from arpo_verl.records.jumps import Jump, append_jumps
from arpo_verl.tools.viewer.documents import (
    COLUMNS,
    EpisodesFeed,
    episode_document,
    metrics_document,
    run_document,
)


def rows_of(document):
    return {row[0]: dict(zip(document["columns"], row, strict=True)) for row in document["rows"]}


def test_the_run_lists_what_there_is_to_choose_from(written, run):
    written.episode(2, "b-task", "u2", stop_reason="step_limit")
    written.episode(1, "a-task", "u1")
    written.folder(1, "broken__u3_0")
    document = run_document(run, run.snapshot(), live=True)
    assert (document["name"], document["live"], document["num_episodes"]) == ("a-run", True, 2)
    assert document["tasks"][0] == {"task_id": "a-task", "instruction": "Do a-task."}
    assert document["num_broken"] == 1
    assert document["broken"][0]["id"] == "step_000001/broken__u3_0"


def test_a_task_whose_success_jumped_says_so_with_the_first_success(written, run):
    first = written.episode(2, "a-task", "u2", session=1)
    written.episode(2, "b-task", "u3")
    jumps = [Jump("a-task", 2, 8, "u2", 1), Jump("b-task", 2, 16, "u9", 0)]
    append_jumps(written.trajectories / "jumps.jsonl", jumps)
    document = run_document(run, run.snapshot(), live=False)
    assert [task["jump"] for task in document["tasks"]] == [
        {"step": 2, "earlier": 8, "first": first},
        {"step": 2, "earlier": 16, "first": None},
    ]


def test_a_row_holds_every_column(written, run):
    did = [{"actions": [{"action": "Wait"}, {"action": "Click"}]}, {"actions": [{"action": "Click"}, {"action": "rm"}]}]
    id = written.episode(1, turns=did)
    row = rows_of(EpisodesFeed().document(run.snapshot(), None))[id]
    assert row["actions"] == ("Click", "Wait")
    assert tuple(row) == COLUMNS
    assert (row["task_id"], row["step"], row["session"], row["validation"]) == ("press-ok", 1, 0, False)
    assert (row["advantage"], row["replaced"], row["replayed_into"]) == (None, False, [])


@pytest.fixture
def feed(run):
    """What is new for a page that has the last answer's cursor: the rows by id."""
    feed, cursor = EpisodesFeed(), None

    def changed():
        nonlocal cursor
        document = feed.document(run.snapshot(), cursor)
        assert document["complete"] is (cursor is None)
        cursor = document["cursor"]
        return rows_of(document)

    return changed


def test_a_cursor_gets_only_what_changed(written, feed):
    success = written.episode(1, uid="old")
    assert list(feed()) == [success]
    failed, other = written.episode(2, uid="new", success=0.0), written.episode(2, uid="other")
    assert list(feed()) == [failed, other]
    assert feed() == {}
    written.group(2, "other", {"session": 0, "reward": 1, "advantage": 0.5})
    assert [(id, row["advantage"]) for id, row in feed().items()] == [(other, 0.5)]
    replay = {"step": 1, "uid": "old", "session": 0}
    written.group(2, "new", {"session": 0, "reward": 1, "advantage": 1, "replay": replay})
    changed = feed()
    assert changed[success]["replayed_into"] == [failed] and changed[failed]["replaced"]


def test_after_a_row_is_gone_all_are_sent(written, run):
    feed = EpisodesFeed()
    gone, kept = written.episode(1, uid="a"), written.episode(2, uid="b")
    cursor = feed.document(run.snapshot(), None)["cursor"]
    shutil.rmtree(written.trajectories / gone)
    document = feed.document(run.snapshot(), cursor)
    assert (list(rows_of(document)), document["complete"]) == ([kept], True)


FOREIGN = ["", "x", "other.1", ".", "1.-1", "\u0661.\u0661"]
TAMPERED = [f"own.{number}" for number in ("9" * 5000, "-1", "1.0", " 1", "x", "")]


@pytest.mark.parametrize("cursor", FOREIGN + TAMPERED)
def test_a_cursor_of_another_server_or_one_that_was_tampered_with_gets_all(written, run, cursor):
    written.episode(1)
    feed = EpisodesFeed()
    origin = feed.document(run.snapshot(), None)["cursor"].partition(".")[0]
    document = feed.document(run.snapshot(), cursor.replace("own", origin))
    assert (len(document["rows"]), document["complete"]) == (1, True)


def test_an_older_snapshot_takes_nothing_back(written, run):
    feed = EpisodesFeed()
    written.episode(1, uid="a")
    older = run.snapshot()
    written.episode(2, uid="b")
    newer = run.snapshot()
    feed.document(newer, None)
    assert len(feed.document(older, None)["rows"]) == 2


def test_an_episode_comes_with_its_group(written, run):
    source = written.episode(1, uid="old")
    ids = [written.episode(2, uid="u", session=session, success=0.0) for session in (0, 1)]
    replay = {"step": 1, "uid": "old", "session": 0}
    rows = [
        {"session": 0, "reward": 0, "advantage": -0.5},
        {"session": 1, "reward": 1, "advantage": 1, "replay": replay},
    ]
    written.group(2, "u", *rows, {"session": 2, "reward": 0, "advantage": -0.5})
    document = episode_document(run, run.snapshot(), ids[1])
    assert document["turns"][0]["actions"][0]["action"] == "Click"
    assert document["folder_files"] == ["00.png", "01.png", "episode.json"]
    assert (document["advantage"], document["replaced"], document["replayed_by"]) == (None, True, source)
    assert [member["id"] for member in document["group"]] == [*ids, None]
    assert [member["replay_of"] for member in document["group"]] == [None, source, None]
    assert (document["group"][1]["reward"], document["group"][1]["trained_reward"]) == (0.0, 1)
    beside = [written.episode(3, uid="v", session=session) for session in (0, 1)]
    written.group(3, "v", {"session": 1000, "reward": 1, "advantage": 1, "replay": replay})
    document = episode_document(run, run.snapshot(), source)
    assert (document["replayed_into"], document["replayed_beside"]) == ([ids[1]], beside[:1])
    for file in (written.trajectories / source).glob("*.png"):
        file.unlink()
    document = episode_document(run, run.snapshot(), source)
    assert document["folder_files"] == ["episode.json"] and len(document["turns"]) == 2


def test_metrics_come_in_six_digits(written, run):
    written.metrics(1, loss=0.123456789, tokens=123456789)
    written.metrics(2, loss=1e-12)
    assert metrics_document(run)["series"] == {"loss": [0.123457, 1e-12], "tokens": [123456789, None]}


def test_whatever_a_model_wrote_is_ascii(written, run):
    text = "\ud800 \u2028 </script> \x00 中"
    id = written.episode(1, instruction=text)
    content = dump_json(episode_document(run, run.snapshot(), id))
    assert content.isascii()
    assert json.loads(content)["instruction"] == text
