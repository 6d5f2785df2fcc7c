"""What an embedded desktop costs: a fresh one per reset, an action with its screenshot, memory of many at once.

    python benchmarks/desktop.py [--smoke] [--json PATH] [--desktops N] [--against CHECKOUT]

Everything goes through OSWorld's unmodified client over HTTP. The comparison runs in the same desktops: an action as a
Python interpreter of its own (`python -c "import pyautogui; ..."`), as OSWorld's own guest does it.

A neighbour is a desktop with 300 busy loops, the limit on processes permitting: how much slower a step is beside it.
`--against` measures another checkout of this package in turns with this one, since load changes more than code does:
ratios of this one's time to the other's, each of the medians of its turns. `added_cpu_s` is what this one's reset takes
more of the processors, the median over turns: all processes count, in a control group of version 1 (so as root). Then
8 and 16 desktops of this checkout play episodes at once: seconds that each waits for its next desktop, and the memory
of all with as many booted ahead. Screens are as large as the demo's there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
from cpu_group import CpuGroup
from figures import Arguments, machine, report

from arpo_verl.desktop.provider import EmbeddedProvider
from arpo_verl.environments.osworld.lean_imports import deferred_imports
from arpo_verl.types import Size

SIZE, DEMOS_SIZE = Size(640, 480), Size(448, 336)
BUSY_LOOPS = 300
CLICK = "pyautogui.click(320, 240)"
PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "  # what OSWorld's client puts before an action


def timed(action: Callable[[], Any]) -> float:
    """Seconds that `action` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def summary(name: str, values: list[float], scale: float = 1.0) -> dict[str, float]:
    """Median and 95th percentile."""
    ordered = sorted(value * scale for value in values)
    return {
        f"{name}_median": statistics.median(ordered),
        f"{name}_p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
    }


def osworld_environment(provider: EmbeddedProvider) -> Any:
    """OSWorld's `DesktopEnv` over our provider."""
    with deferred_imports():
        import desktop_env.desktop_env as osworld
    osworld.create_vm_manager_and_provider = lambda *_, **__: (None, provider)
    return osworld.DesktopEnv(
        provider_name="docker", path_to_vm="embedded", screen_size=SIZE, require_a11y_tree=False, headless=True
    )


def measure_one(repeats: int) -> dict[str, float]:
    """One desktop: start, resets, actions."""
    provider = EmbeddedProvider(SIZE)
    start_s = timed(provider.start_emulator)
    env = osworld_environment(provider)
    try:
        env.controller.get_screenshot()
        resets = [timed(lambda: reset(env)) for _ in range(repeats)]
        steps = [timed(lambda: click_and_look(env)) for _ in range(3 * repeats)]
        cold = [timed(lambda: click_in_new_interpreter_and_look(env)) for _ in range(max(3, repeats // 2))]
    finally:
        env.close()
    figures = {"start_s": start_s, **summary("reset_s", resets), **summary("act_screenshot_ms", steps, 1000)}
    figures |= summary("interpreter_per_action_ms", cold, 1000)
    figures["ratio_vs_interpreter_per_action"] = statistics.median(cold) / statistics.median(steps)
    return figures


def reset(env: Any) -> None:
    """`DesktopEnv.reset` of a used desktop, first screenshot included."""
    env.is_environment_used = True
    assert env.reset()["screenshot"]


def click_and_look(env: Any) -> None:
    env.controller.execute_python_command(CLICK)
    assert env.controller.get_screenshot()


def click_in_new_interpreter_and_look(env: Any) -> None:
    # Under this name the guest does not run it in its warm interpreter; it is the same Python with the same packages.
    command = ["/opt/arpo/bin/python", "-c", PREFIX + CLICK]
    answer = requests.post(f"{env.controller.http_server}/execute", json={"command": command}, timeout=90).json()
    assert answer["returncode"] == 0, answer
    assert env.controller.get_screenshot()


def measure_many(count: int, rounds: int) -> dict[str, float]:
    """Many desktops at once: time to boot them all, memory, steps per second of all together."""
    providers = [EmbeddedProvider(SIZE) for _ in range(count)]
    try:
        with ThreadPoolExecutor(count) as threads:
            start_s = timed(lambda: list(threads.map(EmbeddedProvider.start_emulator, providers)))
            steps_s = timed(lambda: list(threads.map(lambda provider: walk(provider, rounds), providers)))
            memory = pss_mib(providers)
            reset_s = timed(lambda: list(threads.map(EmbeddedProvider.revert_to_snapshot, providers)))
    finally:
        for provider in providers:
            provider.stop_emulator()
    return {
        f"start_s_{count}": start_s,
        f"reset_s_{count}": reset_s,
        f"steps_per_s_{count}": count * rounds / steps_s,
        f"pss_mib_{count}": memory,
        f"pss_mib_each_of_{count}": memory / count,
    }


def measure_neighbour(repeats: int) -> dict[str, float]:
    """A step alone, and beside a desktop whose programs take all that they get."""
    providers = [EmbeddedProvider(SIZE), EmbeddedProvider(SIZE)]
    try:
        for provider in providers:
            provider.start_emulator()
        alone = [timed(lambda: walk(providers[0], 1)) for _ in range(repeats)]
        server = f"http://127.0.0.1:{providers[1].get_ip_address().split(':')[1]}"
        # Each in a session of its own: the kernel's autogroups share processors by session.
        loops = f"for n in $(seq {BUSY_LOOPS}); do setsid sh -c 'while :; do :; done' & done"
        requests.post(f"{server}/setup/launch", json={"command": loops, "shell": True}).raise_for_status()
        time.sleep(4)  # all of them run
        beside = [timed(lambda: walk(providers[0], 1)) for _ in range(repeats)]
    finally:
        for provider in providers:
            provider.stop_emulator()
    figures = summary("step_alone_ms", alone, 1000) | summary("step_beside_busy_neighbour_ms", beside, 1000)
    ratio = figures["step_beside_busy_neighbour_ms_median"] / figures["step_alone_ms_median"]
    return figures | {"slowed_by_busy_neighbour": ratio}


WHAT = ("start", "reset", "step")
RESETS = 10
THINK_S = 0.5
"""Between two actions of a rollout: an episode of ten takes five seconds, as one of the demo on two cores."""


class Checkout:
    """A desktop of some checkout, in a process of its own that does as it is told, and that is counted apart."""

    def __init__(self, path: Path):
        words, paths = [sys.executable, str(Path(__file__).resolve()), "--obey"], {"PYTHONPATH": str(path)}
        self._group = CpuGroup()
        self._process = subprocess.Popen(words, stdin=-1, stdout=-1, text=True, env=os.environ | paths)
        self._group.admit(self._process.pid)

    def seconds(self, what: str) -> float:
        """How long one of `WHAT` took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def cpu_seconds(self, what: str) -> float:
        """Processors' time of `what` by all of its processes, also those that have ended."""
        before = self._usage()
        self.seconds(what)
        return self._usage() - before

    def _usage(self) -> float:
        time.sleep(0.3)  # what ends behind an episode has ended
        return self._group.seconds()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._group.close()


def obey() -> None:
    """The other side of `Checkout`."""
    provider = EmbeddedProvider(DEMOS_SIZE)

    def reset() -> None:
        walk(provider, 1)
        provider.revert_to_snapshot()

    tasks: dict[str, Callable[[], Any]] = {
        "start": lambda: (provider.stop_emulator(), provider.start_emulator()),
        "reset": reset,
        "resets": lambda: [reset() for _ in range(RESETS)],
        "step": lambda: walk(provider, 10),
    }
    for line in sys.stdin:
        print(timed(tasks[line.strip()]), flush=True)
    provider.stop_emulator()


def measure_against(other: Path, rounds: int) -> dict[str, float]:
    """This checkout's time over the other's, in turns."""
    checkouts = [Checkout(Path(__file__).resolve().parents[1]), Checkout(other)]
    measured: dict[str, list[list[float]]] = {name: [[], []] for name in (*WHAT, "reset_cpu", "step_cpu")}
    try:
        for turn in range(rounds + 1):
            for name, both in measured.items():
                for index in (0, 1) if turn % 2 else (1, 0):
                    one = checkouts[index]
                    if name in WHAT:
                        value = one.seconds(name)
                    elif name == "reset_cpu":
                        value = one.cpu_seconds("resets") / RESETS
                    else:
                        value = one.cpu_seconds("step")
                    if turn:  # the first warms both up
                        both[index].append(value)
    finally:
        for checkout in checkouts:
            checkout.close()
    figures = {}
    for name, (ours, theirs) in measured.items():
        figures[f"{name}_ms"], figures[f"{name}_ms_other"] = (statistics.median(s) * 1000 for s in (ours, theirs))
        figures[f"{name}_ratio"] = figures[f"{name}_ms"] / figures[f"{name}_ms_other"]
    added = [mine - other for mine, other in zip(*measured["reset_cpu"], strict=True)]
    return figures | {"added_cpu_s": statistics.median(added)}


def measure_rollout(count: int, episodes: int) -> dict[str, float]:
    """Desktops that play at once: how long each waits for its next one, and the memory of all with those ahead."""
    providers = [EmbeddedProvider(DEMOS_SIZE) for _ in range(count)]

    def play(provider: EmbeddedProvider) -> list[float]:
        waits = []
        for _ in range(episodes):
            waits.append(timed(provider.revert_to_snapshot))
            provider.boot_next()
            for _ in range(10):
                walk(provider, 1)
                time.sleep(THINK_S)
        return waits[1:]  # none was booted ahead of the first

    try:
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(EmbeddedProvider.start_emulator, providers))
            waits = [wait for of_desktop in threads.map(play, providers) for wait in of_desktop]
        memory = pss_mib(providers)
    finally:
        for provider in providers:
            provider.stop_emulator()
    return {**summary(f"wait_s_{count}", waits), f"pss_mib_{count}_and_{count}_ahead": memory}


def walk(provider: EmbeddedProvider, rounds: int) -> None:
    """Click and look, over HTTP."""
    server = f"http://127.0.0.1:{provider.get_ip_address().split(':')[1]}"
    for _ in range(rounds):
        requests.post(f"{server}/execute", json={"command": ["python", "-c", PREFIX + CLICK]}).raise_for_status()
        requests.get(f"{server}/screenshot").raise_for_status()


def pss_mib(providers: list[EmbeddedProvider]) -> float:
    """Memory of these desktops and of their template, shared pages counted once between those that share them."""
    kib = 0
    for bubblewrap in {provider._guest._template._process.pid for provider in providers}:
        for pid in descendants(bubblewrap):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it."""
    children = [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(below for child in children for below in descendants(int(child)))]


def main() -> None:
    parser = Arguments(__doc__, "few repeats and four desktops")
    parser.add_size("--desktops", 16, 4, "how many at once")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure only this checkout against that one")
    parser.add_argument("--obey", action="store_true", help="for its own use: do what standard input says")
    arguments = parser.parse()
    if arguments.obey:
        return obey()
    if arguments.against:
        figures = measure_against(arguments.against, 2 if arguments.smoke else 15)
        for count in (4,) if arguments.smoke else (8, 16):
            figures |= measure_rollout(count, 2 if arguments.smoke else 6)
        return report({**machine(), "screen": f"{DEMOS_SIZE.width}x{DEMOS_SIZE.height}", **figures}, arguments.json)
    figures = {**machine(), "screen": f"{SIZE.width}x{SIZE.height}", **measure_one(4 if arguments.smoke else 30)}
    figures |= measure_neighbour(10 if arguments.smoke else 60)
    report(figures | measure_many(arguments.desktops, 3 if arguments.smoke else 20), arguments.json)


if __name__ == "__main__":
    main()
