"""`benchmarks/long_run.py` tells growth from warm-up and noise, and runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

from long_run import BOUNDS, slope  # noqa: E402

pytestmark = pytest.mark.study
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_slope_is_per_1000_episodes_behind_the_warm_up():
    episodes = list(range(40, 4840, 40))
    warm = [min(number, 1200) / 10 for number in episodes]
    assert slope(warm, episodes) == 0
    assert slope([value + number / 100 for value, number in zip(warm, episodes, strict=True)], episodes) == 10
    spikes = [value + 500 * (index % 9 == 0) for index, value in enumerate(warm)]
    assert slope(spikes, episodes) == 0


@pytest.mark.release
@pytest.mark.desktop
def test_it_runs_in_small(tmp_path):
    out = tmp_path / "figures.json"
    subprocess.run([sys.executable, BENCHMARKS / "long_run.py", "--smoke", "--json", out], check=True)
    figures = json.loads(out.read_text())
    for kind, steps in (("fake", 12), ("embedded", 3)):
        assert figures[kind]["steps"] == steps and figures[kind]["episodes"] == 4 * steps
        assert figures[kind]["lost"] == 0 and figures[kind]["per_1000_episodes"].keys() == BOUNDS.keys()
