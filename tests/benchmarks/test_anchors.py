"""What `benchmarks/anchors.py` says of baselines, against numbers worked by hand."""

import numpy as np
import pytest
from anchors import figures_of

from arpo_verl.plugin.step_credit import EpisodeTurns
from arpo_verl.rollout.screen import CELLS

pytestmark = pytest.mark.study


def test_errors_are_of_both_baselines_at_the_same_turns():
    def turns(screens, reward):
        return EpisodeTurns("g", reward, np.array([[17 * ord(s) % 256] * CELLS for s in screens], np.uint8))

    figures = figures_of([[turns("abc", 1.0), turns("abd", 0.0), turns("ae", 0.0)]], tolerance=0)
    assert figures == {
        "tolerance": 0,
        "turns": 8,
        "turns_compared": 5 / 8,
        "rollouts_compared_with": (3 * 2 + 2 * 1) / 5,
        "later_turns_compared": 2,  # both before b
        "squared_error_of_group_mean": (1.0**2 + 0.5**2) / 2,
        "squared_error_of_anchor_mean": 1.0,
    }
