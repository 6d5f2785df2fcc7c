"""What the processes of a run take of the processors, by what each of them is for."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_SANDBOX = "bwrap"
_INTERPRETERS = ("python", "python3", "sh", "bash", "dash")


@dataclass
class _Process:
    """A process as it was last seen; times in clock ticks."""

    parent: int
    command: str
    self_ticks: int
    reaped_ticks: int


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends, so that none is lost of sight."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel makes no subreaper")


class CpuTimes:
    """CPU seconds of all processes below this one, since it was made. Call `adopt_orphans` first.

    The total is exact: what living processes took, and what they and we have collected of dead ones. Its parts are
    those seen by a look every `interval_s`; what shorter-lived processes took between two looks is `unseen`.
    """

    def __init__(self, interval_s: float = 0.2) -> None:
        self._by_use: Counter[str] = Counter()
        self._last: dict[tuple[int, int], int] = {}
        self._uses: dict[tuple[int, int], str] = {}
        self._lock = threading.Lock()
        self._begin = self._look()
        self._by_use.clear()
        self._ended = threading.Event()
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def total_s(self) -> float:
        """CPU seconds until now."""
        with self._lock:
            return (self._look() - self._begin) / _TICKS_PER_S

    def by_use_s(self) -> dict[str, float]:
        """The same by what a process is for, the largest first."""
        with self._lock:
            total = self._look() - self._begin
            uses = Counter(self._by_use)
        uses["unseen"] = total - sum(uses.values())
        return {use: ticks / _TICKS_PER_S for use, ticks in uses.most_common()}

    def _keep_looking(self) -> None:
        while not self._ended.wait(self._interval_s):
            with self._lock:
                self._look()

    def _look(self) -> int:
        """Add what is new to the parts; the total in ticks."""
        processes = _below(os.getpid())
        total = sum(one.self_ticks + one.reaped_ticks for one in processes.values()) + _reaped_by_us()
        for key, one in processes.items():
            spent = one.self_ticks - self._last.get(key, 0)
            self._last[key] = one.self_ticks
            use = _use(key, processes)
            if use.startswith("ray IDLE"):  # not yet given its work, or after it
                use = self._uses.get(key, use)
            elif self._uses.get(key, "").startswith("ray IDLE"):
                moved = self._last[key] - spent
                self._by_use[self._uses[key]] -= moved
                self._by_use[use] += moved
            self._uses[key] = use
            self._by_use[use] += spent
        return total


def _reaped_by_us() -> int:
    times = os.times()
    return round((times.children_user + times.children_system) * _TICKS_PER_S)


def _below(ancestor: int) -> dict[tuple[int, int], _Process]:
    """Every living process below `ancestor`, by process id and start."""
    found: dict[tuple[int, int], _Process] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
                command = Path(entry.path, "cmdline").read_bytes()
            except OSError:  # it ended meanwhile
                continue
            fields = stat.rpartition(")")[2].split()
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            words = command.decode(errors="replace").replace("\0", " ").strip() or name
            ticks = [int(fields[i]) for i in (11, 12, 13, 14)]  # utime, stime, cutime, cstime of proc(5)
            key = int(entry.name), int(fields[19])
            found[key] = _Process(int(fields[1]), words, ticks[0] + ticks[1], ticks[2] + ticks[3])
    by_parent: dict[int, list[tuple[int, int]]] = {}
    for key, one in found.items():
        by_parent.setdefault(one.parent, []).append(key)
    below: dict[tuple[int, int], _Process] = {}
    parents = [ancestor]
    while parents:
        for key in by_parent.get(parents.pop(), ()):
            below[key] = found[key]
            parents.append(key[0])
    return below


def _use(key: tuple[int, int], processes: dict[tuple[int, int], _Process]) -> str:
    """What a process is for: a Ray actor's class, or a desktop's program, or its program's name."""
    command = processes[key].command
    if command.startswith("ray::"):
        return f"ray {command[5:].split('.')[0].split('(')[0]}"
    by_id = {pid: one for (pid, _), one in processes.items()}
    words = [os.path.basename(word) for word in command.split()]
    name = next((word for word in words if word and word not in _INTERPRETERS and word[0] != "-"), words[0])
    if words[0].startswith("python") and "arpo_guest" in command:
        name = "guest"
    elif words[0].startswith("python") and "-m" in words:
        name = words[words.index("-m") + 1]
    parent = processes[key].parent
    while parent in by_id:
        if os.path.basename(by_id[parent].command.split()[0]) == _SANDBOX:
            return f"desktop {name}"
        parent = by_id[parent].parent
    return name[:40]
