"""`benchmarks/rollout_schedule.py`: its arithmetic on draws that are known, and the real loop and pool by its clock."""

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("verl")

import rollout_draws as draws  # noqa: E402
from rollout_draws import CAPS, HANG_S, RANGES, Fault, World, least_s, lockstep_s, shared_boots_s  # noqa: E402
from rollout_schedule import Setting, Stage, VirtualRun, compare  # noqa: E402

pytestmark = pytest.mark.study
SECONDS = {"boot": 10.0, "set_up": 2.0, "generate": 1.0, "act": 3.0, "evaluate": 5.0}


@dataclass(frozen=True)
class Known(World):
    """Two replies an episode; the first action of the first session takes 30 s, the second of the other 20 s."""

    turns: int = 2
    faults: tuple = ()

    def seconds(self, kind, *key):
        return {((0, 0, 0), 1): 30.0, ((0, 0, 1), 2): 20.0}.get(
            (key[:3], key[3:][0] if kind == "act" else 0), SECONDS[kind]
        )

    def fault(self, session, attempt):
        return dict(self.faults).get((session, attempt))


SESSIONS = [(0, 0, 0), (0, 0, 1)]


def test_lockstep_waits_for_the_slowest_at_each_turn_and_the_bound_does_not():
    world = Known()
    assert lockstep_s(world, SESSIONS, [2], 8) == {"total": 10 + 2 + (1 + 30) + (1 + 20) + 5, "boots": 10}
    assert least_s(world, SESSIONS, [2], 3) == 2 + 1 + 30 + 1 + 3 + 5
    one_after_the_other = (2 + 31 + 4 + 5) + (2 + 4 + 21 + 5)
    assert least_s(world, SESSIONS, [1], 3) == one_after_the_other + 10, "the second needs a boot"
    assert lockstep_s(world, SESSIONS, [1], 8)["total"] == one_after_the_other + 20
    assert least_s(world, SESSIONS, [2], 3, in_stream=True) == (one_after_the_other + 20) / 2


def test_what_a_fault_took_is_in_the_bound_and_lockstep_has_no_second_try():
    world = Known(faults=(((SESSIONS[1], 0), Fault(2, True)),))
    lost, again = 2 + 1 + 3 + 1 + HANG_S, 2 + 4 + 21 + 5
    assert world.attempts(SESSIONS[1], 3) == [lost, again]
    assert least_s(world, SESSIONS, [2], 3) == lost + again
    assert lockstep_s(world, SESSIONS, [2], 8)["total"] == 10 + 2 + (1 + 30) + (1 + HANG_S) + 5


def test_boots_beyond_what_a_host_bears_share_it():
    assert shared_boots_s([10, 20, 30], 3) == 30
    assert shared_boots_s([10, 10, 10, 10], 2) == 20
    assert shared_boots_s([10, 30], 1) == 40


@pytest.mark.parametrize("tails", ["none", "pareto"])
def test_draws_have_the_stated_percentiles_and_do_not_depend_on_their_order(tails):
    world = World(tails=tails)
    for kind, (low, high) in RANGES.items():
        drawn = [world.seconds(kind, number) for number in range(2000)]
        assert np.percentile(drawn, [5, 95]) == pytest.approx([low, high], rel=0.15)
        assert max(drawn) <= CAPS[kind] and world.seconds(kind, 7) == drawn[7]
    assert draws.SLOW_FACTOR * max(CAPS["act"], CAPS["evaluate"], CAPS["set_up"]) < HANG_S


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return Stage(tmp_path_factory.mktemp("schedule"))


def test_the_loop_and_the_pool_play_what_was_drawn(stage):
    """With a desktop for each session nothing but the longest session takes time."""
    setting = Setting(4, tasks=2, rollouts=2, steps=1, world=World(turns=2))
    played = VirtualRun(stage, setting).play()
    figures = compare(setting, played)
    assert played["step_s"][0] == pytest.approx(least_s(setting.world, setting.sessions(2), [4], 3), abs=0.01)
    assert figures["fraction_of_bound"] == 1.0 and figures["speedup_vs_lockstep"] > 1 and figures["lost_sessions"] == 0


@pytest.mark.release
def test_attempts_that_desktops_break_are_played_again_in_the_time_that_the_bound_has_for_them(stage):
    setting = Setting(4, tasks=2, rollouts=2, steps=2, mode="stream", world=World(turns=2, fault_rate=0.3))
    figures = compare(setting, VirtualRun(stage, setting).play())
    assert 0 < figures["in_episode"] < figures["environment_utilisation"] <= 1.001
