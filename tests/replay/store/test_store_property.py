"""A few of the random lives of `benchmarks/replay_store_property.py`, which runs 10,000."""

import random
import shutil

import pytest
import replay_store_property as study

pytestmark = pytest.mark.study


def test_random_lives_keep_capacity_order_and_whole_folders(tmp_path):
    scratch = tmp_path
    if study.MEMORY_DISK.is_dir():
        scratch = study.MEMORY_DISK / f"arpo-{tmp_path.name}-{random.SystemRandom().randrange(10**9)}"
    try:
        counts = study.live(range(120), scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    # Each life is checked as it goes on; here only that the lives were not idle.
    assert all(counts[name] > 100 for name in ("add", "evicted", "save", "kill", "restore", "linked"))
    assert counts["kill"] - counts["kill_came_late"] > 100


def test_a_process_killed_while_it_saves_leaves_whole_stores(tmp_path):
    counts = study.kill_while_saving(tmp_path, 3, random.Random(0))
    assert counts["kills"] == 3 and counts["saves_before_kills"] >= 3
