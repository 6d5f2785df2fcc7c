"""In the stock trainer's place: it takes the same command line, prints noise, and writes what the trainer and our run
callback write. The environment variable STAND_IN says how each start ends, the last word for all further ones: such as
`fault:1,ends`, a fault after step 1, then a good end."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import orjson
from omegaconf import OmegaConf

from arpo_verl.records.ended_starts import note_fault
from arpo_verl.records.metrics_files import keep_earlier_metrics
from arpo_verl.records.starts import note_start, read_starts

STEPS = 3
OUTLIVED = ("waits", "hangs", "leaves")
"""Endings behind which a process of the trainer still runs."""


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    run_dir = Path(options["run_dir"])
    endings = os.environ.get("STAND_IN", "ends").split(",")
    ending, _, last = endings[min(len(read_starts(run_dir)), len(endings) - 1)].partition(":")
    checkpoints = run_dir / "checkpoints"
    latest = checkpoints / "latest_checkpointed_iteration.txt"
    first = int(latest.read_text()) + 1 if latest.exists() else 1
    print("\n".join(f"noise {number}" for number in range(100)))
    if ending in ("hangs", "ignores"):  # from here on: a front that has shown a step may send the signal at once
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True) if ending in OUTLIVED else None
    print(f"processes {os.getpid()} {worker and worker.pid}", flush=True)
    print(f"platform {os.environ.get('VERL_PLATFORM')}, logger {options.get('trainer.logger')}")
    print(f"model {options.get('actor_rollout_ref.model.path')}")
    if ending == "hangs":
        print("RuntimeError: what failed\nthe trainer failed", flush=True)
    if ending == "refused":
        raise SystemExit("arpo_verl: 2 problems:\n- the recipe cannot run\n- nor this")
    keep_earlier_metrics(run_dir, resumes=latest.exists())
    note_start(run_dir, OmegaConf.create(), ["host memory  5.1 GB of 25 GB"])
    checkpoints.mkdir(exist_ok=True)
    with (run_dir / "metrics.jsonl").open("wb", buffering=0) as file:
        if first == 1:
            log(file, 0, {"val-aux/arpo_verl/success/mean@1": 0.25})
        if last == "0":
            end(ending, run_dir)
        for step in range(first, STEPS + 1):
            sys.stderr.write(f"\rTraining Progress: {step - 1}/{STEPS}\rTraining Progress: {step}/{STEPS}")
            latest.write_text(str(step))
            log(file, step, training(step))
            if step == int(last or 2):
                end(ending, run_dir)


def training(step: int) -> dict[str, float]:
    return {
        "training/global_step": step,
        "rollout/success_mean": step / 4,
        "replay/injected": 2,
        "environment/faults/lost": 1.0,
        "environment/faults/host": 0.0,
        "environment/dropped_sessions": 0,
        "timing_s/step": 60.0,
    }


def log(file, step: int, data: dict) -> None:
    file.write(orjson.dumps({"step": step, "data": data}) + b"\n")


def end(ending: str, run_dir: Path) -> None:
    if ending in ("fault", "leaves", "lasts"):
        note_fault(run_dir, "The queue's storage died on node 10.0.0.7", lasts=ending == "lasts")
        os._exit(1)
    if ending == "loses its head":
        raise SystemExit("Failed to connect to GCS within 60 seconds. GCS may have been killed.")  # Ray's words
    if ending == "crashes":
        raise RuntimeError("the \x1b[36mworker\x1b[0m died")
    if ending == "is killed":
        print("the last words")
        os.kill(os.getpid(), signal.SIGKILL)
    if ending in ("waits", "hangs", "ignores"):
        threading.Event().wait()


if __name__ == "__main__":
    main()
