"""Episodes on disk."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import pytest
from support.desktop_harness import eventually, until
from support.loop_harness import DONE, HIT, MISS, ROW, FakePool, ScriptedEngine, make_loop, recipe
from support.loop_harness import play as play_on

from arpo_verl.desktops.fake import FakeScript
from arpo_verl.errors import GenerationError
from arpo_verl.records import recorder
from arpo_verl.records.budget import budget_keeper
from arpo_verl.records.episode_folder import EpisodeFolder, remove_unfinished


def files_below(folder):
    """`os.walk` passes over a folder that goes while it looks, where `Path.rglob` raises."""
    return sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def play(policy, tokenizer, tmp_path):
    """Play replies, or an engine of one's own, with these options of `gui_agent`; the records go to `tmp_path`."""

    def play(replies, row=ROW, pool=None, **agent):
        engine = replies if isinstance(replies, ScriptedEngine) else ScriptedEngine(tokenizer, replies)
        config = recipe({"trajectory_dir": str(tmp_path), **agent})
        return play_on(policy, engine, pool or FakePool(), config, row)

    return play


def read_episode(folder):
    (path,) = folder.glob("*/*/episode.json")
    return path.parent, json.loads(path.read_text())


class WatchingEngine(ScriptedEngine):
    """Calls `watch(number)` when it is asked for reply `number`, from 0, and waits for it."""

    def __init__(self, tokenizer, replies, watch):
        super().__init__(tokenizer, replies)
        self.watch = watch

    async def generate(self, *args, **kwargs):
        await self.watch(len(self.calls))
        return await super().generate(*args, **kwargs)


def test_an_episode_is_one_folder_with_its_screenshots(play, tmp_path):
    output = play([HIT, "Action: dance()"])
    folder, episode = read_episode(tmp_path)
    assert files_below(tmp_path) == [
        f"step_000012/click-it__u-1_2/{name}" for name in ("00.png", "01.png", "episode.json", "tokens.json")
    ]
    assert [(folder / name).read_bytes() for name in episode["screenshots"]] == output.screenshots
    expected = {
        "task_id": "click-it",
        "instruction": "Click the red square.",
        "step": 12,
        "uid": "u-1",
        "session": 2,
        "stop_reason": "parse_error",
        "success": 1.0,
        "format_error": True,
        "reward": 0.0,
        "num_turns": 2,
        "response_tokens": len(output.response_ids),
    }
    assert {name: episode[name] for name in expected} == expected
    tokens = json.loads((folder / "tokens.json").read_text())
    assert [id_ for reply in tokens for id_ in reply["token_ids"]] == [
        id_ for id_, written in zip(output.response_ids, output.response_mask, strict=True) if written
    ]
    assert [len(reply["token_ids"]) for reply in tokens] == [len(reply["log_probs"]) for reply in tokens]
    assert ["".join(reply["texts"]) for reply in tokens] == [f"{HIT}<|im_end|>", "Action: dance()<|im_end|>"]
    first, second = episode["turns"]
    assert first["thought"] == "I click it." and first["parse_error"] is None
    assert first["actions"] == [{"action": "Click", "point": [35, 38], "button": "left", "count": 1}]
    assert second["actions"] == [] and "unknown action 'dance'" in second["parse_error"]
    assert second["text"] == "Action: dance()"


def test_the_record_says_when_and_how_long(play, tmp_path):
    before = time.time()
    play([HIT, DONE], pool=FakePool(FakeScript(seconds={"reset": 0.03, "step": 0.02, "evaluate": 0.04})))
    _, episode = read_episode(tmp_path)
    assert before <= episode["started_at"] <= time.time()
    assert episode["reset_s"] >= 0.03 and episode["evaluate_s"] >= 0.04
    assert all(turn["desktop_s"] >= 0.02 and turn["generate_s"] > 0 for turn in episode["turns"])
    parts = episode["reset_s"] + episode["evaluate_s"] + sum(turn["desktop_s"] for turn in episode["turns"])
    assert parts == pytest.approx(episode["desktop_s"])
    assert sum(turn["generate_s"] for turn in episode["turns"]) == pytest.approx(episode["generate_s"])
    assert episode["wall_s"] >= episode["desktop_s"] + episode["generate_s"]


@pytest.mark.parametrize(
    ("agent", "seen", "shown"),
    [
        ({}, [0, 0, 0, 0], [(0, 4)]),
        ({"context": "window", "max_screenshots": 2}, [0, 0, 1, 2], [(0, 2), (1, 2), (2, 2)]),
        ({"context": "segments", "max_screenshots": 3, "kept_screenshots": 1}, [0, 0, 0, 3], [(0, 3), (3, 1)]),
    ],
)
def test_the_record_says_what_the_policy_saw_of_each_turn_and_in_which_row(
    play, tokenizer, tmp_path, agent, seen, shown
):
    engine = ScriptedEngine(tokenizer, [MISS, MISS, HIT, DONE])
    play(engine, **agent)
    folder, episode = read_episode(tmp_path)
    assert [turn["first_screenshot"] for turn in episode["turns"]] == seen
    assert [len(call["images"]) for call in engine.calls] == [i + 1 - first for i, first in enumerate(seen)]
    rows = episode["rows"]
    assert [(row["first_screenshot"], row["num_screenshots"]) for row in rows] == shown
    for name in ("prompt_tokens", "response_tokens"):
        assert episode[name] == sum(row[name] for row in rows)
    assert sum(row["reply_tokens"] for row in rows) == sum(len(token_ids) for token_ids, _ in engine.written)
    assert len(json.loads((folder / "tokens.json").read_text())) == 4


def test_an_episode_can_be_read_while_it_is_played(play, tokenizer, tmp_path):
    seen = []

    async def watch(number):
        await until(lambda: list(tmp_path.glob("step_000012/*")))
        (folder,) = (tmp_path / "step_000012").iterdir()
        await until(lambda: (folder / f"{number:02d}.png").exists() and len(live(folder).get("turns", "?")) == number)
        seen.append((folder.name, live(folder), files_below(folder)))

    def live(folder):
        try:
            return json.loads((folder / "live.json").read_text())
        except ValueError:  # it is being written
            return {}

    before = time.time()
    play(WatchingEngine(tokenizer, [HIT, DONE], watch))
    (name, first, files), (_, second, more) = seen
    assert name.startswith(".click-it__u-1_2-")
    assert (files, more) == (["00.png", "live.json"], ["00.png", "01.png", "live.json"])
    assert first["turns"] == [] and before <= first["started_at"] <= time.time()
    expected = {"task_id": "click-it", "instruction": "Click the red square.", "step": 12, "uid": "u-1", "session": 2}
    assert {key: second[key] for key in expected} == expected and second["desktop"] == "fake on here"
    folder, finished = read_episode(tmp_path)
    (turn,) = second["turns"]
    assert {**turn, "desktop_s": 0} == {**finished["turns"][0], "desktop_s": 0}
    assert names_in(folder.parent) == ["click-it__u-1_2"]


def test_what_is_known_while_it_is_played_is_overwritten_whole(tmp_path):
    folder = EpisodeFolder(tmp_path, Path("step_000001/task__u_0"))
    folder.open()
    for document in ({"turns": [1, 2, 3]}, {"turns": []}, {"turns": ["ä" * 9000]}):
        folder.write_live(document)
        (file,) = tmp_path.rglob("live.json")
        assert json.loads(file.read_text(encoding="utf-8")) == document


def test_a_failed_attempt_and_an_episode_without_a_verdict_leave_nothing(play, tmp_path):
    with pytest.raises(GenerationError):
        play([HIT, GenerationError("aborted")])
    assert names_in(tmp_path / "step_000012") == []
    pool = FakePool(FakeScript(fail={"step": [1]}), FakeScript())
    play([HIT, HIT, DONE], pool=pool)
    assert len(pool.desktops) == 2 and names_in(tmp_path / "step_000012") == ["click-it__u-1_2"]


def test_a_cancelled_episode_leaves_nothing(policy, tokenizer, tmp_path):
    async def cancel_in_second_turn():
        reached = asyncio.Event()

        async def watch(number):
            if number:
                reached.set()
                await asyncio.Event().wait()

        config = recipe({"trajectory_dir": str(tmp_path)})
        loop = make_loop(policy, WatchingEngine(tokenizer, [HIT, DONE], watch), FakePool(), config)
        episode = asyncio.create_task(loop.run({"temperature": 1.0, "logprobs": True}, **ROW))
        await reached.wait()
        await until(lambda: list(tmp_path.glob("step_000012/*")))
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    asyncio.run(cancel_in_second_turn())
    assert names_in(tmp_path / "step_000012") == []


def test_what_a_killed_run_left_is_removed(play, tmp_path):
    play([DONE])
    before = files_below(tmp_path)
    left = EpisodeFolder(tmp_path, (tmp_path / "step_000012" / "click-it__u-1_3").relative_to(tmp_path))
    left.open()
    left.add_screenshot(b"\x89PNG")
    left.write_live({})
    assert files_below(tmp_path) != before
    assert remove_unfinished(tmp_path) == 1 and remove_unfinished(tmp_path) == 0
    assert files_below(tmp_path) == before
    assert remove_unfinished(tmp_path / "nowhere") == 0


def test_a_slow_disk_does_not_hold_the_episode_up(play, tokenizer, tmp_path, monkeypatch):
    last_turn, open_folder = threading.Event(), EpisodeFolder.open

    def slow_open(self):
        assert last_turn.wait(600)
        open_folder(self)

    async def watch(number):
        if number == 2:
            last_turn.set()

    monkeypatch.setattr(EpisodeFolder, "open", slow_open)
    play(WatchingEngine(tokenizer, [HIT, MISS, DONE], watch))
    assert len(files_below(tmp_path)) == 5


def test_a_disk_that_hangs_costs_the_record_and_not_the_episode(play, tokenizer, tmp_path, monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr(EpisodeFolder, "add_screenshot", lambda self, screenshot: released.wait(600))
    monkeypatch.setattr(recorder, "FINISH_TIMEOUT_S", 0.05)
    begun = WatchingEngine(tokenizer, [HIT, DONE], lambda number: until(lambda: files_below(tmp_path)))
    try:
        assert play(begun).reward_score == 1.0
        assert files_below(tmp_path)
    finally:
        released.set()
    assert "was not written within 0.05 s" in caplog.text
    eventually(lambda: not files_below(tmp_path))


@pytest.mark.parametrize(
    ("replies", "screenshots"), [([HIT, DONE], []), ([MISS, DONE], [0, 1]), ([HIT, "Action: dance()"], [0, 1])]
)
def test_failures_and_replays_keeps_no_screenshots_of_a_success(play, tmp_path, replies, screenshots):
    play(replies, record="failures_and_replays")
    folder, episode = read_episode(tmp_path)
    assert sorted(shot.name for shot in folder.glob("*.png")) == [f"{number:02d}.png" for number in screenshots]
    assert len(episode["turns"]) == 2 and episode["screenshots"] == ["00.png", "01.png"]


def test_record_none_writes_nothing(play, tmp_path):
    play([HIT, DONE], record="none")
    assert names_in(tmp_path) == []


def test_a_share_of_whole_groups_is_recorded(play, tmp_path):
    uids = [f"u-{number}" for number in range(12)]
    for uid in uids:
        for session in range(2):
            play([DONE], {**ROW, "uid": uid, "session_id": session}, record_share=0.25)
    recorded = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/*/episode.json"))]
    chosen = [uid for uid in uids if recorder.draw(uid) < 0.25]
    assert 0 < len(chosen) < 12
    assert {(e["uid"], e["session"]) for e in recorded} == {(uid, session) for uid in chosen for session in range(2)}
    draws = [recorder.draw(str(number)) for number in range(2000)]
    assert all(abs(sum(draw < share for draw in draws) / 2000 - share) < 0.03 for share in (0.1, 0.5, 0.9))
    assert recorder.draw("u-1") == pytest.approx(0.6339, abs=1e-4), "the same everywhere"


def test_a_resumed_run_replaces_the_folder_whole(play, tmp_path):
    for replies in ([HIT, DONE], [DONE]):
        play(replies)
    assert names_in(read_episode(tmp_path)[0]) == ["00.png", "episode.json", "tokens.json"]


def test_names_cannot_leave_the_directory(play, tmp_path):
    row = {**ROW, "extra_info": {**ROW["extra_info"], "task_id": "../../x/y"}}
    play([DONE], row, trajectory_dir=str(tmp_path / "inside"))
    assert names_in(tmp_path / "inside" / "step_000012") == ["_._.._x_y__u-1_2"]
    assert names_in(tmp_path) == ["inside"]


def test_a_disk_that_refuses_costs_the_record_and_not_the_episode(play, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert play([HIT, DONE], trajectory_dir=str(tmp_path / "file")).reward_score == 1.0
    assert "could not be written" in caplog.text


@pytest.mark.parametrize(
    ("partitions", "validation"), [({"val": {"u-1": {}}}, True), ({"val": {}}, False), ({}, False)]
)
def test_validation_is_told_by_the_partition_of_the_queue(play, tmp_path, monkeypatch, partitions, validation):
    import transfer_queue as tq

    async def kv_list(partition_id):
        return partitions

    monkeypatch.setattr(tq, "get_client", lambda: None)
    monkeypatch.setattr(tq, "async_kv_list", kv_list)
    play([DONE])
    assert read_episode(tmp_path)[1]["validation"] is validation


def test_the_budget_is_kept_by_those_who_record_whoever_samples(play, tmp_path):
    """No sampler of ours is in this process: with veRL's own the records grew without bound."""
    for step in (1, 2, 3):
        play([HIT, DONE], {**ROW, "global_steps": step}, trajectory_budget_bytes=1)
        budget_keeper(tmp_path, 1).wait()
    left = {path.parent.parent.name for path in tmp_path.rglob("*.png")}
    assert left == {"step_000003"} and len(list(tmp_path.rglob("episode.json"))) == 3
