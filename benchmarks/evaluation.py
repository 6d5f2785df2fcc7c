"""What `arpo-verl evaluate` measures: one policy twice, killed, over HTTP, and after training.

    python benchmarks/evaluation.py --work runs/evaluation --json       # 45 minutes on two cores
    python benchmarks/evaluation.py --smoke
    python benchmarks/evaluation.py --table                             # writes the table of docs/evaluation.md

All by the command line, on real embedded desktops, the shipped suite, each task 8 times, with the warm-started policy
of `benchmarks/make_policy.py` and one that the stock trainer has trained, merged by veRL's own merger:

- at temperature 0 undisturbed, and once more killed twice with `kill -9` and resumed: `resumed_identical` is true where
  both played the same trials, each once, and every episode has the same replies, verdict and end. Of those that differ
  it counts the ones where the desktop showed something else first: a busy one may draw later than any pause;
- at temperature 0 over HTTP (`model_server.py`): `endpoint_same_actions` counts the episodes with the same actions;
- at the temperature of evaluations, 0.6, in this process and, with another seed, over HTTP: `success_*`, each with its
  95% interval;
- 2,000 times two evaluations drawn from the runs of both, by task: `within_each_others_interval` is the share in which
  each one's success lies in the other's interval.

Looks wait a second, and then until two in a row are alike, since a busy machine draws late: of 256 pairs of episodes
played at 0.3 s beside trainers (load 20) one differed, where a list was opened but not drawn yet. A killed benchmark
goes on in --work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import figures
from model_server import ModelServer
from trainer_run import TrainerRun, copy_tasks, make_policy, trainer_arguments

from arpo_verl.evaluation.compare import compare
from arpo_verl.evaluation.folder import EvaluationFolder
from arpo_verl.evaluation.results import Evaluated
from arpo_verl.evaluation.statistics import scores_by_task, success_interval
from arpo_verl.records.layout import CHECKPOINTS, TRAJECTORIES, read_episode
from arpo_verl.tasks.loader import EMBEDDED_DIR

RESULTS = figures.RESULTS / "evaluation.json"
PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
BEGIN, END = "<!-- evaluation.json -->", "<!-- /evaluation.json -->"
ROWS = {
    "greedy": "warm-started, temperature 0",
    "warm_started": "warm-started, temperature 0.6",
    "warm_started_endpoint": "the same over HTTP, another seed",
    "trained": "after STEPS training steps, temperature 0.6",
}
PACE = {"action_pause_s": 1.0, "settle_timeout_s": 3, "settle_interval_s": 0.3}
MAX_STEPS = 8
DRAWN = ("--temperature", "0.6")
KILLED_AT = (0.25, 0.6)
"""Shares of the episodes."""
REPEATS = 2000
SMOKE_TASKS = ("dialog-confirm-yes", "dialog-confirm-no", "message-press-green")
POLL_S = 0.2
STARTS = 4


def main() -> None:
    parser = trainer_arguments(__doc__, smoke="three tasks, two runs, no training")
    parser.add_size("--runs", 8, 2, "runs of each task")
    parser.add_size("--steps", 60, 0, "training steps of the trained policy; 0 leaves it out")
    parser.add_size("--desktops", 4, 2, "desktops")
    parser.add_argument("--table", action="store_true", help="only write the table of docs/evaluation.md")
    parser.set_defaults(json=None)
    arguments = parser.parse()
    if arguments.table:
        text = PAGE.read_text("utf-8")
        PAGE.write_text(with_table(text, json.loads(RESULTS.read_text())), "utf-8")
        return
    with ExitStack() as stack:
        work = (arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        common = _options(arguments)
        known = ["--tasks", str(copy_tasks(work / "tasks", SMOKE_TASKS))] if arguments.smoke else []
        policy = make_policy(work / "policy", *known)
        report = figures.machine() | measure(work, policy, common, arguments.runs)
        write(report, arguments.json)
        if arguments.steps:
            report |= measure_trained(work, common, arguments.steps)
            write(report, arguments.json)
    figures.show(report)


def write(report: Mapping[str, Any], path: Path | None) -> None:
    """Put the figures into the file, beside those that it has."""
    earlier = json.loads(path.read_text()) if path is not None and path.is_file() else {}
    figures.write(earlier | report, path)


def with_table(text: str, report: Mapping[str, Any]) -> str:
    """The page's text with the table of these figures in its place."""
    rows = [
        f"| {words} | {report[f'success_{name}']:.1%} | {low:.1%} to {high:.1%} |"
        for name, words in ROWS.items()
        if f"success_{name}" in report
        for low, high in [report[f"interval_{name}"]]
    ]
    head = f"| policy, {report['tasks']} tasks, {report['runs']} runs of each | success | 95% interval |"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    steps = str(report.get("training_steps"))
    return "\n".join([before + BEGIN, head, "|---|---|---|", *rows, END + after]).replace("STEPS", steps)


def _options(arguments: Any) -> list[str]:
    """What all evaluations have in common."""
    tasks = ",".join(str(EMBEDDED_DIR / f"{name}.json") for name in SMOKE_TASKS) if arguments.smoke else "embedded"
    common = ["--recipe", "embedded", "--tasks", tasks, "--runs", str(arguments.runs), "--max-steps", str(MAX_STEPS)]
    common += ["--desktops", str(arguments.desktops), *(f"--option={name}={value}" for name, value in PACE.items())]
    return common


def measure(work: Path, policy: Path, common: Sequence[str], runs: int) -> dict[str, Any]:
    """One policy: twice, killed, and over HTTP."""
    by_model = ["--model", str(policy)]
    greedy = ["--temperature", "0"]
    undisturbed = play(work / "undisturbed", *common, *by_model, *greedy)
    kills = play_killed(work / "killed", undisturbed, *common, *by_model, *greedy)
    warm = play(work / "warm", *common, *by_model, *DRAWN)
    with served(policy, work) as url:
        served_by = ["--endpoint", url, "--processor", str(policy)]
        over_http = play(work / "endpoint-greedy", *common, *served_by, *greedy)
        warm_over_http = play(work / "endpoint", *common, *served_by, *DRAWN, "--seed", "1")
    first, second = episodes(work / "undisturbed"), episodes(work / "killed")
    by_http = episodes(work / "endpoint-greedy")
    same = [first[key]["actions"] == by_http[key]["actions"] for key in first]
    differing = [key for key in first if first[key] != second.get(key)]
    return {
        "tasks": len(undisturbed.domains),
        "runs": runs,
        "episodes": len(undisturbed.results),
        "faults": sum(len(one.faults) for one in (undisturbed, warm, over_http, warm_over_http)),
        "kills": kills,
        "resumed_same_trials": first.keys() == second.keys() and len(second) == len(undisturbed.results),
        "resumed_identical": first == second,
        "resumed_that_differ": len(differing),
        "resumed_that_differ_by_screenshot": sum(
            desktop_differed(work / "undisturbed", work / "killed", key) for key in differing
        ),
        "endpoint_same_actions": sum(same),
        "endpoint_episodes": len(same),
        **success("greedy", undisturbed),
        **success("warm_started", warm),
        **success("warm_started_endpoint", warm_over_http),
        "endpoint_within_interval": _hold_each_other(_scores(warm), _scores(warm_over_http)),
        "within_each_others_interval": agreement(warm, warm_over_http),
    }


def measure_trained(work: Path, common: Sequence[str], steps: int) -> dict[str, Any]:
    """The same after training, and the two compared."""
    trained = play(work / "trained", *common, "--model", str(train(work, steps)), *DRAWN)
    compared = compare(EvaluationFolder(work / "warm").read(), trained)
    return {"training_steps": steps, **success("trained", trained), "comparison": str(compared)}


def play(out: Path, *options: str) -> Evaluated:
    """`arpo-verl evaluate`, or what it left when this benchmark was killed."""
    for start in range(1, STARTS + 1):
        # It goes on: Ray gives itself 30 s to start, which a busy machine may not keep.
        if subprocess.run(_command(out, *options), check=start == STARTS).returncode == 0:
            break
    return EvaluationFolder(out).read()


def play_killed(out: Path, whole: Evaluated, *options: str) -> int:
    """The same, killed twice; returns how often it was."""
    kills = 0
    for share in KILLED_AT:
        wanted = int(share * len(whole.results))
        if _recorded(out) >= wanted:  # of a benchmark that was killed itself
            kills += 1
            continue
        process, starts = subprocess.Popen(_command(out, *options)), 1
        while _recorded(out) < wanted:
            if process.poll() is not None:
                if starts == STARTS:
                    raise RuntimeError(f"it ended by itself, with {process.returncode}, before it was killed")
                process, starts = subprocess.Popen(_command(out, *options)), starts + 1
            time.sleep(POLL_S)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    play(out, *options)
    return kills


def train(work: Path, steps: int) -> Path:
    """A run of the stock trainer, and its checkpoint."""
    run_dir, folder = work / "training", work / "training" / CHECKPOINTS / f"global_step_{steps}"
    if not (folder / "actor").is_dir():
        options = [f"actor_rollout_ref.model.path={work / 'policy'}", f"trainer.total_training_steps={steps}"]
        options += ["trainer.save_freq=10", "trainer.val_before_train=false", "trainer.test_freq=-1"]
        run = TrainerRun(run_dir, *options)
        run.wait_for(run.has_ended)
    return folder


@contextmanager
def served(policy: Path, work: Path) -> Iterator[str]:
    """The policy's server; on the same port whenever it is started for this folder, since the URL is a setting."""
    file = work / "port"
    server = ModelServer(policy, int(file.read_text()) if file.is_file() else 0)
    file.write_text(str(server.server_port))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()


def episodes(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What each trial's episode came to: replies, actions, verdict and end."""
    found = {}
    for folder in sorted((out / TRAJECTORIES / "step_000000").iterdir()):
        if folder.name.startswith("."):
            continue
        content = read_episode(folder)
        found[content["task_id"], content["session"]] = {
            "replies": [turn["text"] for turn in content["turns"]],
            "actions": [turn["actions"] for turn in content["turns"]],
            "success": content["success"],
            "stop_reason": content["stop_reason"],
        }
    return found


def desktop_differed(first: Path, second: Path, trial: tuple[str, int]) -> bool:
    """Whether the first difference of a trial's two episodes is in what the desktop showed, not in what was replied."""
    told = []
    for out in (first, second):
        (folder,) = (out / TRAJECTORIES / "step_000000").glob(f"{trial[0]}__*_{trial[1]}")
        content = read_episode(folder)
        screenshots = [(folder / name).read_bytes() for name in content["screenshots"]]
        told.append([x for turn in zip(screenshots, (t["text"] for t in content["turns"]), strict=True) for x in turn])
    place = next((number for number, pair in enumerate(zip(*told, strict=False)) if pair[0] != pair[1]), None)
    return place is None or place % 2 == 0


def success(name: str, evaluated: Evaluated) -> dict[str, Any]:
    """The mean over tasks, and its interval."""
    scores = _scores(evaluated)
    return {f"success_{name}": _mean(scores), f"interval_{name}": _interval(scores)}


def agreement(*evaluations: Evaluated) -> float:
    """How often two evaluations, each drawn task by task from all runs, lie in each other's interval."""
    pooled = [[*first, *second] for first, second in zip(*map(_scores, evaluations), strict=True)]
    draw = random.Random(0)
    runs = len(_scores(evaluations[0])[0])
    holding = 0
    for _ in range(REPEATS):
        pair = [[draw.choices(scores, k=runs) for scores in pooled] for _ in range(2)]
        holding += _hold_each_other(*pair)
    return holding / REPEATS


def _hold_each_other(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> bool:
    pairs = (_mean(first), _interval(second)), (_mean(second), _interval(first))
    return all(low <= mean <= high for mean, (low, high) in pairs)


def _scores(evaluated: Evaluated) -> list[list[float]]:
    by_task = scores_by_task(evaluated.results)
    return [by_task[task_id] for task_id in evaluated.domains if task_id in by_task]


def _mean(scores: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(statistics.fmean(one) for one in scores)


def _interval(scores: Sequence[Sequence[float]]) -> tuple[float, float]:
    interval = success_interval(scores)
    assert interval is not None, "there are scores"
    return tuple(interval)


def _command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "arpo_verl.cli.main", "evaluate", "--out", str(out), *options]


def _recorded(out: Path) -> int:
    folder = out / TRAJECTORIES / "step_000000"
    return sum(not name.startswith(".") for name in os.listdir(folder)) if folder.is_dir() else 0


if __name__ == "__main__":
    main()
