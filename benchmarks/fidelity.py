"""What an OSWorld evaluator sees of an episode: from us, from OSWorld's own runner, and from ARPO's environment worker.

    python benchmarks/fidelity.py [--smoke] [--json PATH] [--keep DIR]

The same replies of a model are played three times on embedded desktops. Ours is `arpo_verl.agent.rollout.episode.play`,
the agent loop's own code, recorded as a training run records it; the others play that recording. They run in a process
that imports nothing of ours but the desktop's provider: `desktop_env.DesktopEnv` and the UI-TARS-1.5 agent
`mm_agents/uitars15_v1.py` are those of the installed package, unmodified, with a scripted model behind the agent. The
two loops around them are not in the package; they are written here after their sources, OSWorld's `lib_run_single.py`
and ARPO's `verl/trainer/gui_agent.py`. Pauses are the same on all sides and short; what the sources pause is in
docs/benchmark-fidelity.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from figures import Arguments, write
from PIL import Image, ImageChops

SCREEN = (640, 480)
IMAGE = (644, 476)
"""`SCREEN` as Qwen2.5-VL's processor resizes it: what a model's coordinates are in."""
SETUP_S, ACTION_S = 0.1, 0.15
STILL_S, STILL_LOOKS, STILL_TIMEOUT_S = 0.3, 4, 30.0
"""The evaluator comes when this many looks, so far apart, show the same screen: however slow the machine is."""
MAX_STEPS = 15
POINTER_PX = 32
"""Sides of the pointer, and a pixel: the embedded desktop's screenshots show it, as OSWorld's do."""
CALL_USER_TOLERANCE = 3
"""OSWorld's runner takes the agent's first three `call_user()` for `wait()`."""
RUNNERS = ("osworld", "arpo", "osworld-paste")
"""The reference runners. OSWorld's own pastes what the model types, as `osworld-paste` does; ARPO's types it."""
SMOKE_RUNNERS = RUNNERS[:2]


@dataclass(frozen=True)
class Case:
    """One episode: a shipped task and what the model replies."""

    name: str
    task_id: str
    replies: tuple[str, ...]
    max_steps: int = MAX_STEPS


@dataclass(frozen=True)
class Seen:
    """What the evaluator saw of one episode."""

    score: float
    ends: list[str]
    """The client's action history without the inputs: WAIT, DONE, FAIL, in order."""
    inputs: list[str]
    """The Python code of each input."""
    metrics: list[dict[str, str]]
    """What each metric was given, and what it returned."""
    seconds: float


# --- Cases ------------------------------------------------------------------------------------------------------------


def expert_cases() -> list[Case]:
    """The expert's solution of every shipped task."""
    from arpo_verl.tasks.expert import expert_task_ids

    return [Case(task_id, task_id, expert_texts(task_id)) for task_id in expert_task_ids()]


def smoke_cases() -> list[Case]:
    """A success, a failure, an infeasible task, and the two ends that runners treat differently."""
    solution = expert_texts("form-new-contact")
    missed = "Thought: Press Yes.\nAction: click(start_box='(20,20)')"
    yes = expert_texts("dialog-confirm-yes")
    return [
        Case("success", "form-new-contact", solution),
        Case("failure", "dialog-confirm-yes", (missed, yes[-1])),
        Case("infeasible", "infeasible-bluetooth", expert_texts("infeasible-bluetooth")),
        Case("malformed", "dialog-confirm-yes", (yes[0], "Action: dance(")),
        Case("step-limit", "dialog-confirm-yes", (yes[0], missed), max_steps=2),
    ]


def expert_texts(task_id: str) -> tuple[str, ...]:
    """The expert's replies as a model writes them, in coordinates of the resized image."""
    from arpo_verl.agent.actions.ui_tars import format_reply
    from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies
    from arpo_verl.types import Size

    texts = (format_reply(reply, Size(*IMAGE), EXPERT_SCREEN) for reply in expert_replies(task_id))
    # Special tokens, which no server puts into a reply's text; the reference could not read them.
    return tuple(text.replace("<|box_start|>", "").replace("<|box_end|>", "") for text in texts)


def task_spec(task_id: str) -> dict[str, Any]:
    """The shipped task's JSON."""
    import arpo_verl.tasks

    path = Path(arpo_verl.tasks.__file__).with_name("embedded") / f"{task_id}.json"
    return json.loads(path.read_text(encoding="utf-8"))


# --- Ours -------------------------------------------------------------------------------------------------------------


def play_ours(cases: Iterable[Case], out: Path) -> dict[str, Seen]:
    """Play and record each case by the agent loop's own code."""
    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

    config = EnvironmentConfig(
        screen_size=SCREEN,
        setup_pause_s=SETUP_S,
        action_pause_s=ACTION_S,
        wait_s=2 * ACTION_S,
    )
    environment = OSWorldEnvironment(config, "fidelity")
    try:
        return {case.name: asyncio.run(_play_one(case, environment, out)) for case in cases}
    finally:
        environment.close()


async def _play_one(case: Case, environment: Any, out: Path) -> Seen:
    from arpo_verl.agent.rollout.config import GuiAgentConfig
    from arpo_verl.agent.rollout.episode import play
    from arpo_verl.agent.rollout.scoring import Score
    from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
    from arpo_verl.records.documents import EpisodeRecord
    from arpo_verl.records.episode_folder import write_episode
    from arpo_verl.types import Size, Task

    spec = task_spec(case.task_id)
    desktop = _Desktop(environment, out / f"{case.name}-ours.png")
    config = GuiAgentConfig(max_steps=case.max_steps, max_screenshots=None)
    conversation = ScriptedConversation(replies_of(case.replies), Size(*IMAGE))
    began = time.perf_counter()
    episode = await play(Task(case.task_id, spec["instruction"], spec), desktop, conversation, config)
    seconds = time.perf_counter() - began
    record = EpisodeRecord.of_row({"uid": case.name}, episode, Score(episode.success))
    folder = write_episode(out / "recorded", record, episode.screenshots)
    folder.rename(out / "recorded" / case.name)
    return seen(episode.success, desktop.history, [dataclasses.asdict(call) for call in episode.metrics], seconds)


class _Desktop:
    """The environment, awaited; keeps the screen and the action history that the evaluator meets."""

    def __init__(self, environment: Any, last_screen: Path):
        self.history: list[str] = []
        self._environment = environment
        self._last_screen = last_screen

    async def reset(self, task: Any) -> Any:
        return await asyncio.to_thread(self._environment.reset, task)

    async def step(self, action: Any) -> Any:
        return await asyncio.to_thread(self._environment.step, action)

    async def evaluate(self) -> Any:
        client = self._environment._client
        self._last_screen.write_bytes(await asyncio.to_thread(still_screen, client.controller))
        self.history = list(client.action_history)
        return await asyncio.to_thread(self._environment.evaluate)


def still_screen(controller: Any) -> bytes:
    """The screen once it does not change any more."""
    looks, deadline = [controller.get_screenshot()], time.monotonic() + STILL_TIMEOUT_S
    while len(looks) < STILL_LOOKS and time.monotonic() < deadline:
        time.sleep(STILL_S)
        look = controller.get_screenshot()
        looks = [*looks, look] if look == looks[-1] else [look]
    return looks[-1]


def seen(score: float, history: Sequence[str], metrics: list[dict[str, str]], seconds: float) -> Seen:
    """Part the client's action history into inputs and ends."""
    ends = [action for action in history if action in ("WAIT", "DONE", "FAIL")]
    return Seen(float(score), ends, [action for action in history if action not in ends], metrics, seconds)


# --- The reference, in a process of its own ---------------------------------------------------------------------------


def reference_module() -> ModuleType:
    """OSWorld's UI-TARS-1.5 agent from the installed package; its client of a model server and its logger stand in."""
    sys.modules.setdefault("openai", SimpleNamespace(OpenAI=lambda **_: None))  # type: ignore[arg-type]
    quiet = SimpleNamespace(exception=lambda *_: None)
    sys.modules.setdefault("loguru", SimpleNamespace(logger=quiet))  # type: ignore[arg-type]
    import os

    for name in ("DOUBAO_API_URL", "DOUBAO_API_KEY"):
        os.environ.setdefault(name, "unused")
    import mm_agents.uitars15_v1 as module

    module.print = lambda *_, **__: None  # it prints every reply
    return module


def reference_agent(module: ModuleType, replies: Sequence[str], *, paste: bool, max_steps: int = MAX_STEPS) -> Any:
    """`UITARSAgent` as OSWorld's runner `run_multienv_uitars15_v1.py` configures it, over a scripted model.

    When the replies are used up the model repeats the last one.
    """
    agent = module.UITARSAgent(
        model="scripted",
        max_trajectory_length=max_steps,
        runtime_conf={
            "infer_mode": "qwen25vl_normal",
            "prompt_style": "qwen25vl_normal",
            "input_swap": paste,
            "language": "English",
            "history_n": 5,
            "max_pixels": 16384 * 28 * 28,
            "min_pixels": 100 * 28 * 28,
            "callusr_tolerance": CALL_USER_TOLERANCE,
            "temperature": 0.0,
            "top_k": -1,
            "top_p": 0.9,
            "max_tokens": 1000,
        },
    )
    texts = list(replies)

    def create(**_: Any) -> Any:
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))])

    agent.vlm = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    return agent


def run_osworld(env: Any, agent: Any, spec: dict[str, Any], max_steps: int) -> None:
    """The loop of OSWorld's `lib_run_single.run_single_example`, up to the evaluation."""
    env.reset(task_config=spec)
    agent.reset()
    time.sleep(SETUP_S)
    observation = env._get_obs()
    done, step = False, 0
    while not done and step < max_steps:
        _, actions = agent.predict(spec["instruction"], observation)
        for action in actions:
            observation, _, done, _ = env.step(action, ACTION_S)
            if done:
                break
        step += 1


def run_arpo(env: Any, module: ModuleType, replies: Sequence[str], spec: dict[str, Any], max_steps: int) -> None:
    """The steps of ARPO's `EnvWorker`: a malformed reply is DONE, and each input counts as a step."""
    env.reset(task_config=spec)
    time.sleep(SETUP_S)  # not in its source; the same on all sides here
    count, done, texts = 0, False, list(replies)
    while not done and texts:
        for action in arpo_actions(module, texts.pop(0)):
            _, _, ended, _ = env.step(action, ACTION_S)
            count += 1
            done = done or ended or count == max_steps


def arpo_actions(module: ModuleType, text: str) -> list[str]:
    """What ARPO's worker makes of a reply, by the agent's own two parsing functions."""
    ends = {"finished": "DONE", "wait": "WAIT", "error_env": "FAIL", "call_user": "FAIL"}
    width, height = SCREEN
    try:
        parsed = module.parse_action_to_structure_output(text, 1000, height, width, "qwen25vl")
        end = next((ends[one["action_type"]] for one in parsed if one["action_type"] in ends), None)
        return (
            [end] if end else [module.parsing_response_to_pyautogui_code(one, height, width, False) for one in parsed]
        )
    except Exception:  # as its source: whatever goes wrong is the model's fault
        return ["DONE"]


def play_reference(cases: Sequence[Case], runners: Sequence[str], out: Path) -> dict[str, dict[str, Seen]]:
    """Play the recorded cases by the reference runners, each on an unmodified `DesktopEnv` of its own."""
    from arpo_verl.desktops.embedded.provider import EmbeddedProvider
    from arpo_verl.desktops.osworld.lean_imports import deferred_imports

    with deferred_imports():  # spares metrics' packages that no shipped task uses; easyocr is not installed
        import desktop_env.desktop_env as osworld
    osworld.create_vm_manager_and_provider = lambda *_, **__: (None, EmbeddedProvider(SCREEN))
    module = reference_module()

    def play(runner: str) -> list[Seen]:
        with tempfile.TemporaryDirectory() as cache:
            env = osworld.DesktopEnv(
                provider_name="docker",
                path_to_vm="embedded",
                screen_size=SCREEN,
                require_a11y_tree=False,
                headless=True,
                cache_dir=cache,
            )
            try:
                return [_reference_one(env, module, runner, case, out) for case in cases]
            finally:
                env.close()

    with ThreadPoolExecutor(len(runners)) as threads:
        found = dict(zip(runners, threads.map(play, runners), strict=True))
    return {case.name: {runner: found[runner][n] for runner in runners} for n, case in enumerate(cases)}


def _reference_one(env: Any, module: ModuleType, runner: str, case: Case, out: Path) -> Seen:
    from arpo_verl.desktops.osworld.evaluation import noted_metrics

    recorded = out / "recorded" / case.name / "episode.json"
    while not recorded.exists():
        time.sleep(0.05)
    texts = [turn["text"] for turn in json.loads(recorded.read_text())["turns"]]
    spec = task_spec(case.task_id)
    began = time.perf_counter()
    env.is_environment_used = True  # a fresh desktop: the client itself keeps one that was only looked at
    if runner == "arpo":
        run_arpo(env, module, texts, spec, case.max_steps)
    else:
        agent = reference_agent(module, texts, paste=runner == "osworld-paste", max_steps=case.max_steps)
        run_osworld(env, agent, spec, case.max_steps)
    (out / f"{case.name}-{runner}.png").write_bytes(still_screen(env.controller))
    with noted_metrics(env) as noted:
        score = env.evaluate()
    notes = [dataclasses.asdict(call) for call in noted.calls]
    return seen(score, env.action_history, notes, time.perf_counter() - began)


@contextlib.contextmanager
def reference_process(cases: Sequence[Case], runners: Sequence[str], out: Path) -> Iterator[subprocess.Popen]:
    """`play_reference` in a fresh interpreter: nothing of ours may have touched its `desktop_env`.

    It plays each case as soon as that is recorded, and writes `reference.json`.
    """
    asked = {"cases": [dataclasses.asdict(case) for case in cases], "runners": runners}
    (out / "asked.json").write_text(json.dumps(asked))
    command = [sys.executable, __file__, "--reference", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:  # the client's getters print what they find
        try:
            yield process
        finally:
            process.kill()


def serve_reference(out: Path) -> None:
    """What the fresh interpreter does."""
    asked = json.loads((out / "asked.json").read_text())
    cases = [Case(**(case | {"replies": tuple(case["replies"])})) for case in asked["cases"]]
    found = play_reference(cases, asked["runners"], out)
    values = {name: {r: dataclasses.asdict(s) for r, s in by_runner.items()} for name, by_runner in found.items()}
    (out / "reference.json").write_text(json.dumps(values))


# --- Comparison -------------------------------------------------------------------------------------------------------


def differing_box(first: Path, second: Path) -> tuple[int, int, int, int] | None:
    """The smallest box around all pixels that differ; None where none does."""
    images = [Image.open(path).convert("RGB") for path in (first, second)]
    return ImageChops.difference(*images).getbbox()


def is_pointer(box: Sequence[int] | None) -> bool:
    """Whether no more than the pointer differs: the reference cuts fractions of a pixel off, we round."""
    return box is None or max(box[2] - box[0], box[3] - box[1]) <= POINTER_PX


def compare(case: Case, ours: Seen, reference: Mapping[str, Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """For each reference runner what it saw, and what of that is the same."""
    rows = {}
    for runner, theirs in reference.items():
        box = differing_box(out / f"{case.name}-ours.png", out / f"{case.name}-{runner}.png")
        same = {
            "same_score": ours.score == theirs["score"],
            "same_ends": ours.ends == theirs["ends"],
            "same_metrics": _named(ours.metrics) == _named(theirs["metrics"]),
            "same_screen": is_pointer(box),
        }
        rows[runner] = {**theirs, **same, "differing_box": box}
    return {"case": case.name, "task_id": case.task_id, "ours": dataclasses.asdict(ours), "reference": rows}


def _named(metrics: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return [{**metric, "result": _no_folder(metric["result"])} for metric in metrics]


def _no_folder(result: str) -> str:
    """A getter that fetches a file gives its path in the client's own folder: the name alone is the task's."""
    return result.rsplit("/", 1)[-1] if result.startswith("'/") else result


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line a case and runner, then the sums."""
    keys = ("score", "ends", "metrics", "screen")
    print(f"{'case':26} {'runner':14} {'ours':>5} {'theirs':>6}  {' '.join(f'{key:7}' for key in keys)}")
    for row in rows:
        for runner, values in row["reference"].items():
            marks = " ".join(f"{'same' if values[f'same_{key}'] else 'DIFFERS':7}" for key in keys)
            print(f"{row['case']:26} {runner:14} {row['ours']['score']:5.2f} {values['score']:6.2f}  {marks}")
    for runner in rows[0]["reference"]:
        of_runner = [row["reference"][runner] for row in rows]
        sums = ", ".join(f"{key} {sum(values[f'same_{key}'] for values in of_runner)}" for key in keys)
        print(f"{runner}: of {len(rows)} episodes the same: {sums}")


def main() -> None:
    parser = Arguments(__doc__, "five short episodes instead of all shipped tasks")
    parser.add_argument("--keep", type=Path, help="a folder for the recorded episodes and the last screens")
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    args = parser.parse()
    if args.reference is not None:
        serve_reference(args.reference)
        return
    cases = smoke_cases() if args.smoke else expert_cases()
    with tempfile.TemporaryDirectory() as scratch:
        out = args.keep or Path(scratch)
        shutil.rmtree(out / "recorded", ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        with reference_process(cases, SMOKE_RUNNERS if args.smoke else RUNNERS, out) as reference:
            ours = play_ours(cases, out)
            if reference.wait() != 0:
                raise SystemExit("the reference's process failed; see above")
        theirs = json.loads((out / "reference.json").read_text())
        rows = [compare(case, ours[case.name], theirs[case.name], out) for case in cases]
    print_table(rows)
    write(rows, args.json)


if __name__ == "__main__":
    main()
