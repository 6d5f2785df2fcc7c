"""A few of the random lives of `benchmarks/replay_store_property.py`, which runs 10,000."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "replay_store_property.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location(PATH.stem, PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[PATH.stem] = module  # its dataclasses look for their module there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[PATH.stem]


def test_random_lives_keep_bounds_order_and_whole_folders(study, tmp_path, monkeypatch):
    scratch = tmp_path
    if study.MEMORY_DISK.is_dir():
        scratch = study.MEMORY_DISK / f"arpo-{tmp_path.name}-{random.SystemRandom().randrange(10**9)}"
    try:
        counts = study.live(range(120), scratch)
    finally:
        study.shutil.rmtree(scratch, ignore_errors=True)
    # Each life is checked as it goes on; here only that the lives were not idle.
    assert all(counts[name] > 100 for name in ("add", "evicted", "save", "kill", "restore", "replay", "linked"))
    assert counts["kill"] - counts["kill_came_late"] > 100


def test_a_process_killed_while_it_saves_leaves_whole_stores(study, tmp_path):
    counts = study.kill_while_saving(tmp_path, 3, random.Random(0))
    assert counts["kills"] == 3 and counts["saves_before_kills"] >= 3
