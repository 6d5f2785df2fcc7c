"""What it costs to judge in a box: the same evaluations in one and in this process, in turn.

    python benchmarks/verdict_cost.py [--smoke] [--json PATH] [--pairs N]

An embedded desktop at the state in which a task's set-up leaves it, judged by OSWorld's unmodified client: a command's
output, a file, and both with a `postconfig` step. A pair judges the same state both ways, which of the two first
changes; garbage is collected before each.

    <kind>_boxed_s, <kind>_unboxed_s    median wall time of `OSWorldEnvironment.evaluate`
    <kind>_added_s, <kind>_ratio        median over the pairs of the difference and of the ratio
    first_boxed_s                       the first evaluation of a process, its judge host being ready
    host_start_s                        from nothing to a judge host that is ready, nothing else being imported
    boxed_cpu_s, unboxed_cpu_s          mean processor time of an evaluation, of this process and of the boxes, whatever
                                        else the machine does
    host_pss_mib                        memory of the judge host, the box that waits included; what it shares with other
                                        processes in proportion
    box_uss_mib                         what a box has to itself while it judges: the largest of 20
"""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import Arguments, machine, report

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.client import Client
from arpo_verl.environments.osworld.environment import OSWorldEnvironment
from arpo_verl.environments.osworld.evaluation import evaluate
from arpo_verl.environments.osworld.verdict.judge import Judge
from arpo_verl.environments.osworld.verdict.judge_host import this_process_host
from arpo_verl.types import Evaluation, Task

OUTPUT = {"type": "vm_command_line", "command": ["echo", "-n", "yes"]}
FILE = {"type": "vm_file", "path": "/etc/hostname", "dest": "hostname"}
YES = {"type": "rule", "rules": {"expected": "yes"}}
STEP = {"type": "execute", "parameters": {"command": ["true"]}}
KINDS: dict[str, dict[str, Any]] = {
    "command": {"func": "exact_match", "result": OUTPUT, "expected": YES},
    "file": {"func": "compare_text_file", "result": {**FILE, "path": "/etc/passwd"}, "expected": FILE | {"dest": "b"}},
    "both": {
        "func": ["exact_match", "compare_text_file"],
        "result": [OUTPUT, FILE],
        "expected": [YES, FILE | {"dest": "b"}],
        "postconfig": [STEP],
    },
}


class Unboxed:
    """Judges in this process, as before there were boxes."""

    def __call__(self, client: Client, task: Task) -> Evaluation:
        return evaluate(client, "desktop")

    def close(self) -> None:
        """Nothing runs."""


def main() -> None:
    arguments = Arguments(__doc__, smoke="three pairs of each kind")
    arguments.add_size("--pairs", 100, 3, "pairs of each kind")
    chosen = arguments.parse()
    figures: dict[str, Any] = {**machine(), "pairs": chosen.pairs}
    started = time.monotonic()
    host = this_process_host()
    host.await_ready()
    figures["host_start_s"] = time.monotonic() - started
    config = EnvironmentConfig(screen_size=(320, 240))  # type: ignore[arg-type]  as YAML gives it
    with OSWorldEnvironment(config, "benchmark") as desktop:
        boxed, unboxed = Judge(config, "benchmark"), Unboxed()
        zygote = descendants(host.pid)[1]
        own_cpu_s, boxes_before_s = {boxed: 0.0, unboxed: 0.0}, 0.0
        for kind, evaluator in KINDS.items():
            desktop.reset(Task(kind, "", {"id": kind, "instruction": "", "config": [], "evaluator": evaluator}))
            if kind == "command":
                figures["first_boxed_s"] = timed(desktop, boxed)
                boxes_before_s = cpu_s(zygote)
            pairs = []
            for number in range(chosen.pairs):
                order = [boxed, unboxed] if number % 2 else [unboxed, boxed]
                took = {}
                for judge in order:
                    cpu_before_s = time.process_time()
                    took[judge] = timed(desktop, judge)
                    own_cpu_s[judge] += time.process_time() - cpu_before_s
                pairs.append((took[boxed], took[unboxed]))
            figures |= {
                f"{kind}_boxed_s": statistics.median(a for a, _ in pairs),
                f"{kind}_unboxed_s": statistics.median(b for _, b in pairs),
                f"{kind}_added_s": statistics.median(a - b for a, b in pairs),
                f"{kind}_ratio": statistics.median(a / b for a, b in pairs),
            }
        time.sleep(1)  # the last boxes are being buried
        evaluations = chosen.pairs * len(KINDS)
        figures["boxed_cpu_s"] = (own_cpu_s[boxed] + cpu_s(zygote) - boxes_before_s) / evaluations
        figures["unboxed_cpu_s"] = own_cpu_s[unboxed] / evaluations
        figures["host_pss_mib"] = sum(memory_mib(pid)["Pss"] for pid in descendants(host.pid))
        figures["box_uss_mib"] = watched(zygote, lambda: timed(desktop, boxed))
    report(figures, chosen.json)


def timed(desktop: OSWorldEnvironment, judge: Any) -> float:
    desktop._judge = judge
    gc.collect()
    started = time.perf_counter()
    desktop.evaluate()
    return time.perf_counter() - started


def watched(zygote: int, judge: Callable[[], float]) -> float:
    """The largest box that is seen while some evaluations run."""
    largest, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.is_set():
            for pid in descendants(zygote)[1:]:
                largest = max(largest, memory_mib(pid)["Private"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        judge()
    done.set()
    watcher.join()
    return largest


def cpu_s(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """`pid` and the processes below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in descendants(int(child)))]


def memory_mib(pid: int) -> dict[str, float]:
    """`Pss`, and `Private`: what would be free without the process."""
    found = {"Pss": 0.0, "Private": 0.0}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return found
    for line in lines:
        name, value = line.split()[:2]
        for wanted in found:
            if name.startswith(wanted) and name.rstrip(":") in ("Pss", "Private_Clean", "Private_Dirty"):
                found[wanted] += int(value) / 1024
    return found


if __name__ == "__main__":
    main()
