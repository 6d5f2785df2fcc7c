"""What `make demo` takes in a ready environment from its command to its first step, by part; before and after a change.

    python benchmarks/start.py before after busy half_core --before FOLDER [--smoke] [--json PATH]

`before` starts the demo of the checkout FOLDER, which has an environment of its own; the others start this one's.
`busy` starts it `--tries` times beside eight processes that only compute, each in a session of its own. `half_core` has
the kernel give the whole run half a core. Each start ends by Ctrl-C after its first step (with --smoke when Ray runs).
Its entry says how long that took, and how many processes were left. CPU seconds are of all processes and hardly depend
on other load; wall seconds do. Control groups of version 1 count and limit, so as root. Each measurement is added to
the file's earlier ones, so that the two sides can be measured in turns; the ratios are of their medians.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cpu_group import CpuGroup
from figures import Arguments, machine, show, write
from trainer_run import ROOT, read_steps

from arpo_verl.records.layout import METRICS_FILE

PERIOD_S = 0.1
PATIENCE_S = 30 * 60
ENDING_S = 120
PARTS: tuple[tuple[str, str | Callable[[Path], bool]], ...] = (
    ("front", lambda run_dir: (run_dir / "output.log").exists()),
    ("driver_imports_and_checks", "ray init kwargs"),
    ("ray", "Started a local Ray instance"),
    ("worker_imports", r"TaskRunnerV1 pid=\d+\)"),
    ("trainer_and_queue", lambda run_dir: (run_dir / "pool.json").exists()),
    ("model_engine_and_desktops", lambda run_dir: any((run_dir / "trajectories").glob("*/*"))),
    ("validation", lambda run_dir: (run_dir / METRICS_FILE).stat().st_size > 0),
    ("first_step", lambda run_dir: 1 in read_steps(run_dir)),
)
"""Each part ends with words in the run's output, or when this is true of its folder."""
REACHES = {"model_engine_and_desktops": "first_episode", "validation": "first_step"}
"""What a run begins when this part ends."""


@contextlib.contextmanager
def half_a_core(process_id: int) -> Iterator[None]:
    """Give this process and what it starts half a core."""
    folder = Path(tempfile.mkdtemp(dir="/sys/fs/cgroup/cpu", prefix="benchmark-"))
    (folder / "cpu.cfs_quota_us").write_text(str(int((folder / "cpu.cfs_period_us").read_text()) // 2))
    (folder / "cgroup.procs").write_text(str(process_id))
    try:
        yield
    finally:
        while (folder / "cgroup.procs").read_text():  # the shells that clean up may still be there
            time.sleep(PERIOD_S)
        for group in sorted(folder.glob("**/"), reverse=True):  # a desktop's control groups are in ours
            group.rmdir()


def start(tree: Path, is_slow: bool, until: str) -> dict[str, Any]:
    """Start the demo of `tree`; the seconds and CPU seconds of its parts up to `until`, and how it ended."""
    run_dir, group, began = Path(tempfile.mkdtemp(prefix="start-")), CpuGroup(), time.monotonic()
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    words = ["make", "--no-print-directory", "demo", f"RUN_DIR={run_dir}"]
    make = subprocess.Popen(
        ["sh", "-c", 'read go; exec "$@"', "sh", *words], cwd=tree, env=environ, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    group.admit(make.pid)
    found: dict[str, Any] = {"parts": {}, "load": os.getloadavg()[0]}
    seconds = cpu_seconds = 0.0
    with half_a_core(make.pid) if is_slow else contextlib.nullcontext():
        assert make.stdin is not None
        make.stdin.write(b"go\n")
        make.stdin.close()
        for part, sign in PARTS:
            while not _is_there(sign, run_dir) and make.poll() is None and time.monotonic() - began < PATIENCE_S:
                time.sleep(PERIOD_S)
            if not _is_there(sign, run_dir):
                found["missed"] = part
                break
            now, used = time.monotonic() - began, group.seconds()
            found["parts"][part] = {"seconds": now - seconds, "cpu_seconds": used - cpu_seconds}
            seconds, cpu_seconds = now, used
            if part in REACHES:
                found |= {f"{REACHES[part]}_seconds": seconds, f"{REACHES[part]}_cpu_seconds": cpu_seconds}
            if part == until:
                break
        found |= {"seconds": seconds, "cpu_seconds": cpu_seconds}
        stopped = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGINT)
        while group.process_ids() and time.monotonic() - stopped < ENDING_S:
            time.sleep(PERIOD_S)
        found |= {"ctrl_c_seconds": time.monotonic() - stopped, "left": len(group.process_ids())}
        for process_id in group.process_ids():
            os.kill(process_id, signal.SIGKILL)
        make.wait()
        group.close()
    shutil.rmtree(run_dir)
    return found


def _is_there(sign: str | Callable[[Path], bool], run_dir: Path) -> bool:
    if callable(sign):
        return sign(run_dir)
    log = run_dir / "output.log"
    return log.exists() and re.search(sign, log.read_text(errors="replace")) is not None


def ratios(figures: dict[str, Any]) -> dict[str, float]:
    """Of the medians after to those before, up to the first episode, the first step and its end."""
    found = {}
    for key in [
        f"{reached}{unit}" for reached in ("first_episode_", "first_step_", "") for unit in ("seconds", "cpu_seconds")
    ]:
        sides = [[entry[key] for entry in figures.get(side, ()) if key in entry] for side in ("before", "after")]
        if all(sides):
            found[f"ratio_{key}"] = statistics.median(sides[1]) / statistics.median(sides[0])
    return found


def main() -> None:
    parser = Arguments(__doc__, smoke="one start, until Ray runs")
    parser.add_argument("what", nargs="+", choices=("before", "after", "busy", "half_core"))
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="a checkout with its .venv")
    parser.add_size("--tries", 5, 1, "starts beside eight busy processes")
    arguments = parser.parse()
    path = arguments.json
    figures: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else dict(machine())
    until = "ray" if arguments.smoke else PARTS[-1][0]
    for what in arguments.what:
        for _ in range(arguments.tries if what == "busy" else 1):
            with contextlib.ExitStack() as stack:
                for _ in range(8 if what == "busy" else 0):
                    words = [sys.executable, "-c", "while True: pass"]
                    stack.callback(subprocess.Popen(words, start_new_session=True).kill)
                tree = arguments.before if what == "before" else ROOT
                figures.setdefault(what, []).append(start(tree.absolute(), what == "half_core", until))
            figures |= ratios(figures)
            write(figures, path)
    show(figures)


if __name__ == "__main__":
    main()
