import json
import os
import shutil
from hashlib import sha256

import pytest
from support import ROOT
from support.replay_trajectories import stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.rules import reward_function
from arpo_verl.replay.store.merging import merge_stores
from arpo_verl.replay.store.persistence import MANIFEST, VERSION, Fingerprint, load_store, save_store
from arpo_verl.replay.store.success_store import StoredRecord, SuccessStore
from arpo_verl.types import EpisodeId

PRINT = Fingerprint(tokenizer="aaaa", processor="bbbb", prompt="cccc")


def filled(*steps):
    store = SuccessStore(2)
    for step in steps:
        store.add(stored("ab"[step % 2], step, [b"\x89PNG first", b"\x89PNG%d" % step]))
    return store


def test_a_saved_store_comes_back_as_it_was(tmp_path):
    store = filled(1, 2, 3, 4, 5)
    store.add(stored("c", 6, [], rollout_log_probs=None, extra_fields={"nested": [1, {"x": 2.5}]}))
    save_store(store, tmp_path / "replay", PRINT)
    again = load_store(tmp_path / "replay", PRINT)
    assert again.trajectories() == store.trajectories()
    assert list(again.records()) == list(store.records())
    assert again.num_bytes == store.num_bytes
    assert again.capacity_per_task == 2


def test_the_bounds_of_the_run_hold_for_a_loaded_store(tmp_path):
    save_store(filled(1, 2, 3, 4), tmp_path, PRINT)
    store = load_store(tmp_path, PRINT, into=SuccessStore(1))
    assert [t.step for t in store.trajectories()] == [3, 4]
    with pytest.raises(ReplayError, match="must be empty"):
        load_store(tmp_path, PRINT, into=store)


@pytest.mark.parametrize("part", ["tokenizer", "processor", "prompt"])
def test_a_store_of_another_policy_is_refused_with_the_part_that_differs(tmp_path, part):
    save_store(filled(1), tmp_path, PRINT)
    other = Fingerprint(**{**vars(PRINT), part: "ffff"})
    with pytest.raises(
        ReplayError, match=rf"another {part} \({part} ffff expected, {vars(PRINT)[part]} got\).*replay seed"
    ):
        load_store(tmp_path, other)


def test_the_next_checkpoint_writes_only_what_is_new_and_each_stands_alone(tmp_path):
    store = filled(1, 2)
    save_store(store, tmp_path / "one", PRINT)
    store.add(stored("a", 4, [b"\x89PNG new"]))
    save_store(store, tmp_path / "two", PRINT)
    links = {path.read_bytes(): path.stat().st_nlink for path in (tmp_path / "two" / "screenshots").iterdir()}
    assert links == {b"\x89PNG first": 2, b"\x89PNG1": 2, b"\x89PNG2": 2, b"\x89PNG new": 1}
    shutil.rmtree(tmp_path / "one")
    assert load_store(tmp_path / "two", PRINT).trajectories() == store.trajectories()
    save_store(store, tmp_path / "three", PRINT)
    restored = load_store(tmp_path / "three", PRINT)
    save_store(restored, tmp_path / "four", PRINT)  # a resumed run links from what it was resumed from
    assert {path.stat().st_nlink for path in (tmp_path / "four" / "screenshots").iterdir()} == {3}


def test_saving_again_into_a_folder_leaves_nothing_old_there(tmp_path):
    store = filled(1, 2)
    save_store(store, tmp_path, PRINT)
    (tmp_path / "notes.txt").write_text("mine")
    for step in (3, 5, 7, 9):
        store.add(stored("b", step, [b"\x89PNG later"]))
    save_store(store, tmp_path, PRINT)
    assert len(list(tmp_path.iterdir())) == 4 and (tmp_path / "notes.txt").exists()  # but what is not ours stays
    assert {path.read_bytes() for path in (tmp_path / "screenshots").iterdir()} == {
        *(b"\x89PNG first", b"\x89PNG2", b"\x89PNG later")
    }


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    def no_links(source, target):
        raise OSError("not supported")

    store = filled(1, 2)
    save_store(store, tmp_path / "one", PRINT)
    monkeypatch.setattr(os, "link", no_links)
    save_store(store, tmp_path / "two", PRINT)
    assert load_store(tmp_path / "two", PRINT).trajectories() == store.trajectories()


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("pattern", ["store.json", "trajectories-*.jsonl", "screenshots/*.png"])
@pytest.mark.parametrize("damage", [flip, os.remove])
def test_damage_is_told_and_nothing_of_it_is_loaded(tmp_path, pattern, damage):
    save_store(filled(1, 2), tmp_path, PRINT)
    damage(next(tmp_path.glob(pattern)))
    store = SuccessStore(2)
    with pytest.raises(ReplayError, match="damaged|cannot be read|not complete|has none|must be"):
        load_store(tmp_path, PRINT, into=store)
    assert len(store) == 0 and store.num_bytes == 0


@pytest.mark.parametrize("field", ["reward", "success"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None, "1"])
def test_a_stored_success_that_would_make_advantages_nan_is_refused(tmp_path, field, value):
    """A run that was given such a reward may have saved it."""
    store = filled(1)
    line = json.dumps({**json.loads(next(store.records())[1].record), field: value}).encode()
    store.add_record(StoredRecord("a", line, ()), lambda name: b"")
    save_store(store, tmp_path, PRINT)
    again = SuccessStore(2)
    with pytest.raises(ReplayError, match=rf"task b: its {field} must be a finite number|at `\$.{field}`"):
        load_store(tmp_path, PRINT, into=again)
    assert len(again) == 0
    with pytest.raises(ReplayError, match=f"task a: its {field} must be a finite number"):
        stored(**{field: value})


def test_a_trajectory_remembers_which_episode_it_was(tmp_path):
    store = SuccessStore(2)
    store.add(stored(episode=EpisodeId(7, "u-1", 3)))
    store.add(stored(step=2))
    save_store(store, tmp_path, PRINT)
    again = load_store(tmp_path, PRINT).trajectories()
    assert [trajectory.episode for trajectory in again] == [EpisodeId(7, "u-1", 3), None]
    # Else a group could get the same replay twice, under two names.
    assert stored(episode=EpisodeId(7, "u-1", 3)) == stored(episode=EpisodeId(8, "u-2", 0)) == stored()


@pytest.mark.parametrize(("version", "missing"), [(1, ["episode"]), (3, []), (4, []), (5, ["task_content"])])
def test_a_store_of_an_earlier_version_is_read_and_goes_on_as_one_of_this(tmp_path, version, missing, caplog):
    """Version 1's records do not say which episode they were; version 4's say how often they were replayed, and its
    manifest has bounds that are gone; those before version 6 do not say the content of their task."""
    save_store(filled(1, 2), tmp_path, PRINT)
    records = next(tmp_path.glob("*.jsonl"))
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        if version == 4:
            line["use"] = {"replays": 2, "log_prob": -0.5}
        for name in missing:
            del line[name]
    content = "".join(json.dumps(line, separators=(",", ":"), sort_keys=True) + "\n" for line in lines).encode()
    name = f"trajectories-{sha256(content).hexdigest()}.jsonl"
    records.rename(tmp_path / name).write_bytes(content)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest = {key: manifest[key] for key in manifest if key != "checksum"} | {
        "version": version,
        "trajectories": name,
        "capacity_bytes": 4 * 1024**3,
        "eviction": "least_recently_replayed",
    }
    checksum = sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "checksum": checksum}))
    store = load_store(tmp_path, PRINT)
    assert store.trajectories() == filled(1, 2).trajectories()
    save_store(store, tmp_path / "again", PRINT)
    assert json.loads((tmp_path / "again" / MANIFEST).read_text())["version"] == VERSION
    again = load_store(tmp_path / "again", PRINT)
    assert again.trajectories() == store.trajectories()
    assert caplog.text.count("2 of the 2 successes in") == 2 and "are not replayed" in caplog.text


def test_what_rewarded_a_store_is_saved_with_it_and_another_function_is_said(tmp_path, caplog):
    half = reward_function("compute_score", "pkg://arpo_verl.reward", {"format_weight": 0.5})
    assert half == 'compute_score of arpo_verl.reward with {"format_weight": 0.5}'
    store = SuccessStore(8, half)
    store.add(stored(task_content="c"))
    save_store(store, tmp_path / "half", PRINT)
    load_store(tmp_path / "half", PRINT, into=SuccessStore(8, half))
    load_store(tmp_path / "half", None)
    assert not caplog.text
    mine = reward_function("mine", "/home/me/rewards.py", {})
    load_store(tmp_path / "half", PRINT, into=SuccessStore(8, mine))
    assert f"are of {half}, this run's of mine of rewards.py with {{}}" in caplog.text and len(caplog.records) == 1
    save_store(SuccessStore(8, mine), tmp_path / "mine", PRINT)
    merged = SuccessStore(8)
    merge_stores([tmp_path / "half", tmp_path / "mine"], merged)
    assert merged.reward_function == f"{half} and {mine}"


def test_the_documentation_names_every_field(tmp_path):
    text = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    save_store(filled(1), tmp_path, PRINT)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    record = json.loads(next(tmp_path.glob("*.jsonl")).read_text())
    for name in [*manifest, *manifest["fingerprint"], *record]:
        assert f"`{name}`" in text, name


def test_a_disk_that_refuses_leaves_the_save_before(tmp_path, monkeypatch):
    store = filled(1, 2)
    save_store(store, tmp_path, PRINT)
    before = store.trajectories()
    store.add(stored("a", 4, [b"\x89PNG new"]))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "fsync", full)
        save_store(store, tmp_path, PRINT)
    assert load_store(tmp_path, PRINT).trajectories() == before
    save_store(store, tmp_path, PRINT)
    assert load_store(tmp_path, PRINT).trajectories() == store.trajectories()
    assert not list(tmp_path.rglob(".part-*"))
