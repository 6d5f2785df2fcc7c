"""What `rollout_schedule.py` draws: how long each call of a training step takes, whoever schedules it.

And by arithmetic on the same draws: a step in lockstep, and the least that any schedule needs. Pure; seconds.

No OSWorld machine was at hand. The ranges are the 5th and 95th percentile of a log-normal:

    boot       30 to 120   a Docker desktop, container and guest, on a host that is not at its limit; the client itself
                           gives up after 300
    act        2 to 5      OSWorld's client rests 2 after an action, and takes a screenshot
    evaluate   3 to 30     getters download from the guest and metrics compare; a missing file costs 15
    set_up     5 to 30     downloads, an upload and a program's start; assumed
    generate   1.5 to 6    a reply of some hundred tokens of a 7B policy that shares its engine with others; assumed

With them an episode of 15 turns takes 2 to 3 minutes, as reported for Docker (docs/osworld.md). One call in fifty has a
tail: it takes 1 + x times as long, x Pareto of index 1.5 (a lost request that is sent again, a guest that swaps). No
draw exceeds `CAPS`, which lie below half of the time-outs: what is slow is no fault here, and faults are drawn apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

RANGES = {"boot": (30, 120), "act": (2, 5), "evaluate": (3, 30), "set_up": (5, 30), "generate": (1.5, 6)}
CAPS = {"boot": 140.0, "act": 55.0, "evaluate": 55.0, "set_up": 55.0, "generate": 55.0}
KINDS = tuple(RANGES)
TAILS = ("lognormal", "pareto", "slow_host", "none")
TAIL_SHARE, TAIL_INDEX = 0.02, 1.5
HANG_SHARE = 0.25
HANG_S = 120.0
"""When a call that hangs is given up: the pool's default for an action, here for set-ups and verdicts too."""
SLOW_FACTOR = 2.0
_Z95 = NormalDist().inv_cdf(0.95)

Session = tuple[int, int, int]
"""Training step, task in it, rollout."""


@dataclass(frozen=True)
class Fault:
    """An attempt that a desktop ends: at which call (0: the set-up, 1...: actions, last: the verdict), and whether the
    call hangs until its time-out or raises at half of its time."""

    call: int
    hangs: bool


@dataclass(frozen=True)
class World:
    """All draws of a run, each keyed by what it is of: the order in which they are asked for changes nothing.

    Args:
        tails: `lognormal` as above; `pareto` of the same percentiles, every call; `slow_host`, as lognormal with the
            first host's desktops `SLOW_FACTOR` times slower in all they do; `none`, log-normal without the tail.
        fault_rate: share of attempts that a desktop ends.
        turns: replies of an episode at most.
        varied: whether episodes end earlier: a task's length is then uniform in a third of `turns` to all, known to
            nobody, and each rollout's within a quarter of that.
    """

    seed: int = 0
    tails: str = "lognormal"
    fault_rate: float = 0.0
    turns: int = 15
    varied: bool = False

    def seconds(self, kind: str, *key: int) -> float:
        rng = self._rng(KINDS.index(kind), *key)
        low, high = RANGES[kind]
        if self.tails == "pareto":
            index = math.log(19) / math.log(high / low)
            drawn = low * 0.95 ** (1 / index) * (1 + rng.pareto(index))
        else:
            drawn = math.sqrt(low * high) * math.exp(rng.standard_normal() * math.log(high / low) / 2 / _Z95)
            if self.tails != "none" and rng.random() < TAIL_SHARE:
                drawn *= 1 + rng.pareto(TAIL_INDEX)
        return min(drawn, CAPS[kind])

    def length(self, session: Session) -> int:
        """Replies of the session's episode."""
        if not self.varied:
            return self.turns
        task = self._rng(90, session[1]).uniform(self.turns / 3, self.turns)
        return max(1, min(self.turns, round(task * self._rng(91, *session).uniform(0.75, 1.25))))

    def fault(self, session: Session, attempt: int) -> Fault | None:
        rng = self._rng(92, *session, attempt)
        if rng.random() >= self.fault_rate:
            return None
        return Fault(int(rng.integers(self.length(session) + 2)), bool(rng.random() < HANG_SHARE))

    def desktop_call(self, session: Session, call: int) -> float:
        """The call's time on a desktop of a sound host."""
        kind = "set_up" if call == 0 else "act" if call <= self.length(session) else "evaluate"
        return self.seconds(kind, *session, call)

    def reply(self, session: Session, turn: int) -> float:
        """What the policy takes for its reply number `turn`, from 0."""
        return self.seconds("generate", *session, turn)

    def attempt_s(self, session: Session, attempt: int) -> tuple[float, bool]:
        """How long an attempt holds its desktop, and whether it comes to a verdict."""
        fault = self.fault(session, attempt)
        total = 0.0
        for call in range(self.length(session) + 2):
            if 1 <= call <= self.length(session):
                total += self.reply(session, call - 1)
            if fault is not None and call == fault.call:
                return total + (HANG_S if fault.hangs else self.desktop_call(session, call) / 2), False
            total += self.desktop_call(session, call)
        return total, True

    def attempts(self, session: Session, most: int) -> list[float]:
        """Seconds on a desktop of each of the session's attempts."""
        spent = []
        for attempt in range(most):
            seconds, is_over = self.attempt_s(session, attempt)
            spent.append(seconds)
            if is_over:
                break
        return spent

    @cached_property
    def mean_boot_s(self) -> float:
        return float(np.mean([self.seconds("boot", 0, number) for number in range(1000)]))

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, *key))


def shared_boots_s(boots: Sequence[float], bears: int) -> float:
    """When the last of boots that begin together is over, on a host that bears so many at full speed and shares itself
    among more."""
    now = done = 0.0
    left = sorted(boots)
    for number, boot in enumerate(left):
        active = len(left) - number
        now += (boot - done) * max(1.0, active / bears)
        done = boot
    return now


def lockstep_s(world: World, sessions: Sequence[Session], hosts: Sequence[int], bears: int) -> dict[str, float]:
    """A step as the reference takes it: all desktops are set up together, then all reply, then all act, until the last
    is done; each time the slowest is waited for. As many at once as there are desktops.

    A fault ends its episode, which the reference trains on as a failure: no second try.

    Returns:
        `total`; and `boots`, of it, where every round of episodes begins with boots, all at once.
    """
    num_desktops = sum(hosts)
    total = boots = 0.0
    for first in range(0, len(sessions), num_desktops):
        group = sessions[first : first + num_desktops]
        per_host = np.split(np.arange(num_desktops), np.cumsum(hosts)[:-1])
        slow = {
            int(slot): host == 0 and world.tails == "slow_host" for host, part in enumerate(per_host) for slot in part
        }
        factor = [SLOW_FACTOR if slow[place] else 1.0 for place in range(len(group))]
        boots += max(
            shared_boots_s(
                [world.seconds("boot", 1, *group[slot]) * factor[slot] for slot in part if slot < len(group)], bears
            )
            for part in per_host
        )
        total += _round_s(world, group, factor)
    return {"total": total + boots, "boots": boots}


def _round_s(world: World, sessions: Sequence[Session], factors: Sequence[float]) -> float:
    """From the set-up of these sessions, on as many desktops, to the last verdict: each is asked for when its own
    episode is over, as in the reference."""
    faults = [world.fault(session, 0) for session in sessions]
    now, evaluated = 0.0, 0.0
    for call in range(world.turns + 1):
        acts, replies, over = [0.0], [0.0], []
        for session, fault, factor in zip(sessions, faults, factors, strict=True):
            length = world.length(session)
            if call > length or (fault is not None and fault.call < call):
                continue
            if call > 0:
                replies.append(world.reply(session, call - 1))
            hangs = fault is not None and fault.call == call and fault.hangs
            acts.append(HANG_S if hangs else factor * world.desktop_call(session, call))
            if call == length and (fault is None or fault.call > length):
                hangs = fault is not None and fault.hangs
                over.append(HANG_S if hangs else factor * world.desktop_call(session, length + 1))
        now += max(acts) + max(replies)
        evaluated = max(evaluated, now + max(over, default=0.0))
    return max(now, evaluated)


def least_s(
    world: World, sessions: Sequence[Session], hosts: Sequence[int], max_attempts: int, in_stream: bool = False
) -> float:
    """The least that a step takes, whatever the schedule: the longest session, or the desktops' work shared evenly.

    A session's attempts follow one another; what a fault took is in them, since no schedule foresees it. Each desktop
    serves its first attempt without a boot, which may lie before the step, and boots for every other, at full speed.
    With a slow host the longest session is at its best on another; the work is shared by the desktops' speeds.

    Args:
        in_stream: nothing lies before the step, and what is longest reaches into the next: only the work counts.
    """
    spent = [world.attempts(session, max_attempts) for session in sessions]
    speed = sum(hosts) - (hosts[0] * (1 - 1 / SLOW_FACTOR) if world.tails == "slow_host" else 0.0)
    boots = max(0, sum(map(len, spent)) - (0 if in_stream else sum(hosts)))
    work = sum(map(sum, spent)) + boots * world.mean_boot_s
    return work / speed if in_stream else max(max(map(sum, spent)), work / speed)
