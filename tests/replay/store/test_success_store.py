import gc
import io
import os
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support import ROOT
from support.replay_trajectories import bytes_alone, stored

from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.replay.choice import Group, Outcome, choose_replays
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.spill import SpillFolder
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import EpisodeId

PLENTY = 10**9


def test_the_oldest_of_a_task_leaves_when_the_task_is_full():
    store = SuccessStore(capacity_per_task=2, capacity_bytes=PLENTY)
    for step in (1, 2, 3):
        store.add(stored("a", step=step))
    store.add(stored("b", step=4))
    assert [t.step for t in store.of_task("a")] == [2, 3]
    assert [t.step for t in store.trajectories()] == [2, 3, 4]
    assert (len(store), store.num_tasks) == (3, 2)


def test_the_oldest_of_all_leaves_when_the_bytes_are_spent():
    successes = [stored(task, step=step, screenshots=[bytes([step]) * 100]) for step, task in enumerate("abc")]
    store = SuccessStore(capacity_per_task=8, capacity_bytes=2 * bytes_alone(successes[0]))
    assert all(store.add(success) for success in successes)
    assert [t.task_id for t in store.trajectories()] == ["b", "c"]
    assert store.num_tasks == 2
    assert store.num_bytes == 2 * bytes_alone(successes[0])


def test_a_trajectory_larger_than_the_budget_is_refused_and_evicts_nothing(caplog):
    store = SuccessStore(capacity_per_task=8, capacity_bytes=bytes_alone(stored("a", screenshots=[b"x" * 10])))
    assert store.add(stored("a", screenshots=[b"x" * 10]))
    assert not store.add(stored("b", screenshots=[b"y" * 11]))
    assert [t.task_id for t in store.trajectories()] == ["a"]
    assert "replay.capacity_bytes" in caplog.text


def test_an_identical_screenshot_is_held_and_counted_once():
    store = SuccessStore(capacity_per_task=1, capacity_bytes=PLENTY)
    first_screen = b"d" * 1000
    for task in "ab":
        store.add(stored(task, screenshots=[bytes(bytearray(first_screen)), task.encode()]))
    (a,), (b,) = store.of_task("a"), store.of_task("b")
    assert a.screenshots[0] is b.screenshots[0]
    both = store.num_bytes
    assert both < 2 * bytes_alone(a) - 1000
    store.add(stored("a", screenshots=[b"z"]))  # evicts the old one of a: the shared screenshot stays for b
    assert both - 200 < store.num_bytes < both
    store.add(stored("b", screenshots=[b"z"]))
    assert store.num_bytes < both - 1000


def test_over_the_byte_budget_the_fullest_task_gives_way():
    each = [stored("hard", 1)] + [stored("easy", step) for step in (2, 3, 4)]
    three = SuccessStore(8, PLENTY)
    for success in each[:3]:
        three.add(success)
    for eviction, steps in (("fifo", [2, 3, 4]), ("fullest_task", [1, 3, 4])):
        store = SuccessStore(8, three.num_bytes, eviction=eviction)
        assert all(store.add(success) for success in each)
        assert [t.step for t in store.trajectories()] == steps


def test_a_choice_among_spilled_successes_reads_no_screenshot_but_those_of_the_chosen(tmp_path, monkeypatch):
    """465 reads to choose four replays of 15 screenshots, at every look at the queue, were what it took."""
    store = SuccessStore(8, PLENTY, memory_bytes=100_000, spill_dir=tmp_path)
    for step in range(1, 9):
        store.add(stored("a", step, screenshots=[bytes([step, shot]) * 20_000 for shot in range(5)]))
    assert store.disk_bytes > PLENTY / 10**4
    read_names = []
    read = SpillFolder.read
    monkeypatch.setattr(SpillFolder, "read", lambda self, name: read_names.append(name) or read(self, name))
    failed = Group("a", tuple(Outcome(f"u_{i}_0", "a", 0.0, 0.0, False, "finished", 1) for i in range(2)))
    (replacement,) = choose_replays([failed], store, ReplayConfig(), step=9)
    assert read_names == []
    chosen = store.trajectory(replacement.candidate.serial)
    assert chosen == store.of_task("a")[replacement.candidate.step - 1]
    assert len(read_names) >= 5


def test_equal_successes_are_equal_candidates():
    store = SuccessStore(8, PLENTY)
    for step, uid in ((1, "p"), (1, "q"), (2, "q")):
        store.add(stored("a", step, episode=EpisodeId(step, uid, 0)))
    first, second, third = store.candidates("a")
    assert first == second != third and first.serial != second.serial
    assert (first.task_id, first.step, first.success, first.reward) == ("a", 1, 1.0, 1.0)
    assert store.candidates("c") == ()


def test_what_was_replayed_last_stays_longest():
    store = SuccessStore(2, PLENTY, eviction="least_recently_replayed")
    for step in (1, 2):
        store.add(stored("a", step))
    store.mark_replayed(store.candidates("a")[0])
    store.add(stored("a", 3))
    assert [t.step for t in store.of_task("a")] == [1, 3]
    store = SuccessStore(2, PLENTY)
    for step in (1, 2):
        store.add(stored("a", step))
    store.mark_replayed(store.candidates("a")[0])
    store.add(stored("a", 3))
    assert [t.step for t in store.of_task("a")] == [2, 3]


def test_the_recipes_bounds_reach_the_store(tmp_path):
    config = ReplayConfig(
        capacity_per_task=3,
        capacity_bytes=200_000,
        eviction="fullest_task",
        spill_dir=str(tmp_path),
        memory_bytes=60_000,
        screenshot_encoding="webp",
    )
    store = SuccessStore.of_config(config)
    assert (store.capacity_per_task, store.capacity_bytes, store.eviction) == (3, 200_000, "fullest_task")
    for step in range(5):
        store.add(stored("a", step, [png(step), bytes([step]) * 50_000]))
    assert len(store) == 3 and store.spill_folder.parent == tmp_path
    assert store.disk_bytes > 100_000 and store.memory_bytes <= 60_000
    assert store.of_task("a")[0].screenshots[0][8:12] == b"WEBP"


def test_the_store_needs_neither_torch_nor_verl():
    modules = ["success_store", "persistence", "inspection", "merging", "export"]
    code = "import sys\n" + "".join(f"import arpo_verl.replay.store.{module}\n" for module in modules)
    code += "sys.exit(' '.join({'torch', 'verl', 'ray', 'transformers'} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_eviction_names_the_known():
    with pytest.raises(ConfigError, match="replay.eviction must be one of fifo, fullest_task"):
        SuccessStore(1, PLENTY, eviction="random")


MEASURE = """
import gc, sys, tracemalloc
from support.replay_trajectories import stored
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import EpisodeId

count, tokens, size = map(int, sys.argv[1:])

def fill(count):
    store = SuccessStore(8, 10**9)
    for i in range(count):
        store.add(stored(f"task-{i // 8}", i, [b"%d" % i + bytes(size)], tokens=tokens))
    gc.collect()
    return store

fill(1)
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
store = fill(count)
print(tracemalloc.get_traced_memory()[0] - before, store.num_bytes)
"""


@pytest.mark.parametrize(("count", "tokens", "size"), [(2000, 1, 0), (300, 50, 3000), (20, 2000, 40_000)])
def test_counted_bytes_are_the_bytes_that_python_takes(count, tokens, size):
    # In a process of its own: no other thread allocates there.
    command = [sys.executable, "-c", MEASURE, str(count), str(tokens), str(size)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    taken, counted = map(int, printed.split())
    assert 0.85 * counted - 8192 < taken <= counted + 8192  # an empty store itself takes some


def test_a_store_outgrows_its_memory_on_disk(tmp_path):
    store = SuccessStore(8, PLENTY, memory_bytes=100_000, spill_dir=tmp_path)
    successes = [stored("ab"[step % 2], step, [bytes([step]) * 40_000]) for step in range(10)]
    assert all(store.add(success) for success in successes)
    assert store.memory_bytes <= 100_000 and store.disk_bytes >= 8 * 40_000
    assert store.trajectories() == tuple(successes)
    assert sum(path.stat().st_size for path in store.spill_folder.iterdir()) == store.disk_bytes
    folder = store.spill_folder
    store.clear()
    assert (store.num_bytes, store.disk_bytes) == (0, 0)
    del store
    gc.collect()
    assert not folder.exists()


def test_memory_and_disk_share_the_budget(tmp_path):
    successes = [stored("ab"[step % 2], step, [bytes([step]) * 40_000]) for step in range(10)]
    store = SuccessStore(8, 5 * bytes_alone(successes[0]), memory_bytes=50_000, spill_dir=tmp_path)
    for success in successes:
        store.add(success)
        assert store.num_bytes <= 5 * bytes_alone(successes[0]) and store.memory_bytes <= 50_000
    assert store.trajectories() == tuple(successes[-len(store) :]) and len(store) >= 5


def test_a_spill_folder_left_by_a_killed_process_is_removed_and_one_in_use_is_not(tmp_path):
    code = (
        "import os, sys; from arpo_verl import reaper; from arpo_verl.replay.store.spill import SpillFolder\n"
        "reaper.remove_folder_at_end = lambda folder: None  # killed as well: it would remove the folder\n"
        "folder = SpillFolder(sys.argv[1]); folder.write('x', b'y'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    first = SuccessStore(1, PLENTY, memory_bytes=2000, spill_dir=tmp_path)
    assert [path for path in tmp_path.iterdir()] == [first.spill_folder]
    second = SuccessStore(1, PLENTY, memory_bytes=2000, spill_dir=tmp_path)
    assert {path for path in tmp_path.iterdir()} == {first.spill_folder, second.spill_folder}


def test_a_disk_that_takes_no_more_evicts_and_goes_on(tmp_path, monkeypatch, caplog):
    store = SuccessStore(8, PLENTY, memory_bytes=100_000, spill_dir=tmp_path)

    def full(name, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._spill, "write", full)
    successes = [stored("ab"[step % 2], step, [bytes([step]) * 40_000]) for step in range(5)]
    assert all(store.add(success) for success in successes)
    assert store.trajectories() == tuple(successes[-2:]) and store.memory_bytes <= 100_000
    assert "replay.spill_dir takes no more" in caplog.text


def test_a_spill_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReplayError, match="replay.spill_dir must be a folder that can be written to"):
        SuccessStore(1, PLENTY, spill_dir=tmp_path / "file")


def png(seed, mode="RGB"):
    pixels = np.full((240, 320, 3), seed, dtype=np.uint8)
    pixels[20:60, 30:90] = np.random.default_rng(seed).integers(0, 255, (40, 60, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format="PNG")
    return buffer.getvalue()


def pixels_of(screenshot):
    return Image.open(io.BytesIO(screenshot)).convert("RGB").tobytes()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_webp_keeps_every_pixel_and_takes_less(mode):
    shots = [png(1, mode), png(2, mode), png(1, mode)]
    as_sent, smaller = SuccessStore(1, PLENTY), SuccessStore(1, PLENTY, screenshot_encoding="webp")
    for store in (as_sent, smaller):
        store.add(stored(screenshots=shots))
    (trajectory,) = smaller.of_task("a")
    assert [pixels_of(shot) for shot in trajectory.screenshots] == [pixels_of(shot) for shot in shots]
    assert trajectory.screenshots[0] is trajectory.screenshots[2]
    assert as_sent.of_task("a")[0].screenshots == tuple(shots)
    assert smaller.num_bytes < as_sent.num_bytes


def test_what_webp_does_not_make_smaller_stays_as_sent():
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png(3))).save(buffer, format="JPEG", quality=30)
    for shot in (buffer.getvalue(), b"no image at all"):
        store = SuccessStore(1, PLENTY, screenshot_encoding="webp")
        store.add(stored(screenshots=[shot]))
        assert store.of_task("a")[0].screenshots == (shot,)


def test_numbers_of_numpy_become_plain_and_what_no_file_can_hold_is_refused_by_name():
    store = SuccessStore(1, PLENTY)
    store.add(stored(extra_fields={"score": np.float32(0.5), "count": np.int64(3), "pair": (1, 2)}))
    assert store.of_task("a")[0].extra_fields == {"score": 0.5, "count": 3, "pair": [1, 2]}
    with pytest.raises(ReplayError, match=r"task a: extra_fields.thing must be a plain value .* got object"):
        store.add(stored(extra_fields={"fine": 1, "thing": object()}))
    assert len(store) == 1


def test_log_probs_and_ids_come_back_to_the_bit():
    log_probs = np.random.default_rng(0).normal(-1, 1, 50).astype(np.float32).tolist()
    trajectory = stored(tokens=50, rollout_log_probs=log_probs, prompt_ids=[2**31 - 1, 0, 151_655])
    store = SuccessStore(1, PLENTY)
    store.add(trajectory)
    (held,) = store.trajectories()
    assert held == trajectory and held.rollout_log_probs.tolist() == log_probs
    assert list(held.prompt_ids) == [2**31 - 1, 0, 151_655]


def test_a_trajectory_survives_pickling():
    trajectory = stored(extra_fields={"stop_reason": "finished", "nested": [1, {"x": 2.0}]})
    assert pickle.loads(pickle.dumps(trajectory)) == trajectory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": ""}, "must name its task"),
        ({"response_ids": (), "response_mask": (), "rollout_log_probs": ()}, "must not be empty"),
        ({"response_mask": (1,)}, "response_mask must have one entry for each of the 2 response tokens, got 1"),
        ({"rollout_log_probs": (0.0,) * 3}, "rollout_log_probs must have one entry"),
    ],
)
def test_a_trajectory_that_does_not_hold_together_is_refused(changes, message):
    with pytest.raises(ReplayError, match=message):
        stored(**changes)


additions = st.lists(
    st.builds(
        lambda task, screens, tokens: stored(task, screenshots=screens, tokens=tokens),
        st.sampled_from("abc"),
        st.lists(st.sampled_from([b"", b"p" * 50, b"q" * 500, b"r" * 1500]), max_size=4),
        st.integers(1, 5),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(additions=additions, per_task=st.integers(1, 4), capacity_bytes=st.integers(1, 20_000))
def test_bounds_order_and_byte_count_hold_after_any_additions(additions, per_task, capacity_bytes):
    store = SuccessStore(per_task, capacity_bytes)
    accepted = []
    for step, trajectory in enumerate(additions):
        trajectory = stored(trajectory.task_id, step, trajectory.screenshots, len(trajectory.prompt_ids))
        if store.add(trajectory):
            accepted.append(trajectory)
        held = store.trajectories()
        assert store.num_bytes <= capacity_bytes
        assert all(count <= per_task for count in Counter(t.task_id for t in held).values())
        assert len(held) == len(store) and store.num_tasks == len({t.task_id for t in held})
        for task in "abc":  # what a task holds is always its newest, in order
            of_task = [t for t in accepted if t.task_id == task]
            kept = store.of_task(task)
            assert list(kept) == of_task[len(of_task) - len(kept) :]
        assert not accepted or store.trajectories()[-1:] == (accepted[-1],)


@settings(max_examples=50, deadline=None)
@given(additions=additions)
def test_adding_a_stores_trajectories_to_an_empty_store_gives_it_again(additions):
    store = SuccessStore(3, 12_000)
    for trajectory in additions:
        store.add(trajectory)
    again = SuccessStore(3, 12_000)
    for trajectory in store.trajectories():
        assert again.add(trajectory)
    assert again.trajectories() == store.trajectories() and again.num_bytes == store.num_bytes
