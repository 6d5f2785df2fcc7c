"""How long a person waits for the viewer's pages: of 20 runs with 100,000 episodes, and of one with real screenshots.

    python benchmarks/viewer.py [--smoke] [--json PATH] [--episodes N] [--runs N] [--run RUN] [--copies N]

The 100,000 episodes are made up, of eight turns each, and written by the recorder. `arpo-verl view` serves the folder;
headless Chromium, by playwright, opens the list of runs, and of a run the overview, the list of episodes and a search,
ten times each. `seconds` are the medians, from the change of the address until it is drawn. `first_open_s` is a run's
first opening, when the server reads its episodes, `first_index_s` the first search until all is searched, and
`memory_mb` the server's memory at the end.

The rest is about one run of 2,000 episodes, served, and exported and opened from disk. These
episodes are real ones, copied under other names: those of RUN, for example runs/embedded after `make demo`, or by
default shipped tasks played by their scripts on embedded desktops (`arpo-verl try`). The server is `arpo-verl view`, a
process just started: its first reading of the run's folder is in the list's time. The browser is headless
Chromium, by playwright. The list is open when its first episode is drawn, counted from the start of the navigation; an
episode is open when its first screenshot is decoded and drawn, counted from the change of the address. No episode is
opened twice. The files were just written, so the system has them in memory. Without another load, on two cores, the
list is to be open within 2 s and an episode within 200 ms. `*_cpu_*` is what server and browser computed together,
drawing the film strip included: a busy machine changes the other figures, not these.
"""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from figures import Arguments, machine, report
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from tqdm import tqdm

from arpo_verl.records.documents import EpisodeRecord
from arpo_verl.records.episode_folder import write_episode
from arpo_verl.rollout.episode import Episode, Turn
from arpo_verl.rollout.scoring import Score
from arpo_verl.rollout.sequence import EpisodeSequence
from arpo_verl.types import Click, MetricCall, Point, Size, StopReason, Task, TypeText

EPISODES_PER_STEP, GROUP = 32, 4
OPENED = 20
COMMAND = [sys.executable, "-m", "arpo_verl.cli.main"]
TASKS = (
    "files-new-folder",
    "form-new-contact",
    "window-close-beta",
    "calculator-copy-product",
    "text-copy-ticket",
    "list-scroll-zebra",
    "editor-replace-text",
    "code-copy-seven",
)

LIST_OPEN = """() => new Promise((resolve) => {
  const look = () => {
    const link = document.querySelector('a[href^="#/episode/"]');
    link && link.getBoundingClientRect().height > 0 ? resolve(performance.now()) : requestAnimationFrame(look);
  };
  look();
})"""
"""Milliseconds from the start of the navigation."""

EPISODE_OPEN = """(id) => new Promise((resolve) => {
  const start = performance.now();
  location.hash = `#/episode/${id.split("/").map(encodeURIComponent).join("/")}`;
  const look = async () => {
    const isLarge = (image) => image.loading !== "lazy" && decodeURIComponent(image.src).includes(`/shots/${id}/`);
    const shot = [...document.images].find(isLarge); // the film strip's are lazy
    if (!shot || !shot.complete || !shot.naturalWidth) return requestAnimationFrame(look);
    await shot.decode();
    requestAnimationFrame(() => resolve(performance.now() - start));
  };
  look();
})"""


# --- Many episodes ---------------------------------------------------------------------------------------------------


def play_tasks(tasks: Sequence[str], folder: Path) -> None:
    """Record each task's scripted solution, played on an embedded desktop."""
    for task in tasks:
        command = [*COMMAND, "try", task, "--expert", "--out", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def multiply(sources: Sequence[Path], count: int, run_dir: Path) -> None:
    """Write a run of `count` episodes, in groups of four, by copying those folders in turn."""
    for number in range(count):
        source = sources[(number // GROUP) % len(sources)]
        step, session = 1 + number // EPISODES_PER_STEP, number % GROUP
        content = json.loads((source / "episode.json").read_bytes())
        uid = f"copied-{number // GROUP:06d}"
        folder = run_dir / "trajectories" / f"step_{step:06d}" / f"{content['task_id']}__{uid}_{session}"
        shutil.copytree(source, folder)
        content |= {"step": step, "uid": uid, "session": session, "validation": False}
        (folder / "episode.json").write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        if session == GROUP - 1:
            rows = [{"session": s, "reward": 1.0, "advantage": 0.5 - s, "replay": None} for s in range(GROUP)]
            line = {"uid": uid, "task_id": content["task_id"], "step": step, "rows": rows}
            with (folder.parent / "groups.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def episode_folders(root: Path) -> list[Path]:
    """The folders below a run that have a screenshot."""
    return sorted(path.parent for path in root.glob("**/step_*/*/episode.json") if list(path.parent.glob("00.*")))


# --- Many runs -------------------------------------------------------------------------------------------------------


def record_runs(folder: Path, runs: int, episodes: int) -> None:
    """Write that many runs with that many episodes together, by the recorder."""
    draw = random.Random(0)
    screenshot = io.BytesIO()
    Image.new("RGB", (64, 48), "gray").save(screenshot, "PNG")
    for number in tqdm(range(episodes), desc="record", disable=None):
        run_dir, place = folder / f"run-{number % runs:02d}", number // runs
        step, session = 1 + place // EPISODES_PER_STEP, place % GROUP
        success = float(draw.random() < 0.2 + 0.6 * step * EPISODES_PER_STEP * runs / episodes)
        row = {"global_steps": step, "uid": f"made-{place // GROUP:06d}", "session_id": session}
        record = EpisodeRecord.of_row(row, _made_up(draw, success), Score(success), "desktop-1 on here")
        write_episode(run_dir / "trajectories", record, [screenshot.getvalue()])
        if place % EPISODES_PER_STEP == 0:
            line = {"step": step, "data": {"rollout/success_mean": success, "timing_s/step": 60.0}}
            with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _made_up(draw: random.Random, success: float) -> Episode:
    task = draw.randrange(128)
    words = [f"word{int(draw.paretovariate(0.6)) % 50_000}" for _ in range(200)]
    turns = [
        Turn(f"Action: click {' '.join(part)}", " ".join(part[::-1]), (Click(Point(3, 4)), TypeText(part[0])))
        for part in (words[25 * turn : 25 * turn + 25] for turn in range(8))
    ]
    return Episode(
        task=Task(f"task-{task}", f"Do what task {task} says.", {}),
        rows=(EpisodeSequence([1, 2], range(1)),),
        images=(),
        screenshots=(),
        turns=tuple(turns),
        stop_reason=StopReason.FINISHED,
        success=success,
        generate_s=8.0,
        desktop_s=4.0,
        image_size=Size(64, 48),
        metrics=(MetricCall("exact_match", words[0], words[1], str(success)),),
    )


DRAWN = """async ([address, selector, text]) => {
  location.hash = "#/none";
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  location.hash = address;
  const begun = performance.now();
  while (![...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text)))
    await new Promise((resolve) => requestAnimationFrame(resolve));
  return (performance.now() - begun) / 1000;
}"""
"""Seconds until an element of the page at this address shows this text."""


def measure_runs(folder: Path, repeats: int) -> dict[str, Any]:
    """What the pages of a folder of runs take, and the server's memory."""
    figures: dict[str, Any] = {}
    run = sorted(path.name for path in folder.iterdir())[0]
    with served(folder) as address, chromium() as page:
        server = next(child for child in psutil.Process().children() if "view" in child.cmdline())
        seconds = {"runs": statistics.median(opened(page, address, ".runs tbody tr") for _ in range(repeats))}
        figures["first_open_s"] = opened(page, f"{address}run/{run}/", ".tiles")
        start = time.perf_counter()
        while (found := page.request.get(f"{address}run/{run}/api/search?q=word1").json())["indexed"] < found["total"]:
            time.sleep(0.05)
        figures["first_index_s"] = time.perf_counter() - start
        pages = [("#/overview", ".tiles", "episodes"), ("#/episodes", ".counts", "episodes")]
        pages.append(("#/episodes?q=word1", ".counts", f"{len(found['ids']):,} episode"))
        names = ("overview", "list", "search")
        times = timed(page, f"{address}run/{run}/", pages, repeats)
        seconds |= {name: times[place[0]] for name, place in zip(names, pages, strict=True)}
        for other in sorted(folder.iterdir()):
            page.request.get(f"{address}run/{other.name}/api/run", timeout=600_000)  # it reads all of its episodes
        figures["memory_mb"] = server.memory_info().rss / 1e6
    return {"seconds": seconds, **figures}


def opened(page: Page, address: str, selector: str) -> float:
    """Seconds until a page that is loaded anew shows an element."""
    start = time.perf_counter()
    page.goto(address)
    page.locator(selector).first.wait_for()
    return time.perf_counter() - start


def timed(page: Page, address: str, places: Sequence[tuple[str, str, str]], repeats: int) -> dict[str, float]:
    """The median seconds of each place: its address, and a selector and a text that show that it is drawn."""
    page.goto(address)
    page.locator("main h1").wait_for()
    times = {place[0]: [page.evaluate(DRAWN, list(place)) for _ in range(repeats)] for place in places}
    return {place: statistics.median(one) for place, one in times.items()}


# --- The page --------------------------------------------------------------------------------------------------------


@contextmanager
def served(run_dir: Path) -> Iterator[str]:
    """The address of a viewer of this run, just started."""
    command = [*COMMAND, "view", str(run_dir), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address is not None
            yield address[0]
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def chromium() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(60_000)
        page.goto("about:blank")
        yield page
        browser.close()


def measure_page(page: Page, address: str, ids: Sequence[str], prefix: str = "") -> dict[str, float]:
    """How long the list takes to open, and each episode."""
    start_cpu_s = computed_s()
    page.goto(address, wait_until="commit")
    list_open_s = page.evaluate(LIST_OPEN) / 1000
    page.wait_for_load_state("networkidle")
    list_cpu_s = computed_s()
    milliseconds = [open_episode(page, episode_id) for episode_id in ids]
    return {
        f"{prefix}list_open_s": list_open_s,
        f"{prefix}list_open_cpu_s": list_cpu_s - start_cpu_s,
        f"{prefix}episode_open_ms_median": statistics.median(milliseconds),
        f"{prefix}episode_open_ms_max": max(milliseconds),
        f"{prefix}episode_open_cpu_ms": 1000 * (computed_s() - list_cpu_s) / len(ids),
    }


def computed_s() -> float:
    """CPU seconds of the server and the browser up to now."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(time.user + time.system for time in times)


def open_episode(page: Page, episode_id: str) -> float:
    milliseconds = page.evaluate(EPISODE_OPEN, episode_id)
    page.wait_for_load_state("networkidle")
    return milliseconds


def measure(run_dir: Path, folder: Path, opened: int) -> dict[str, Any]:
    """All figures of one run's folder."""
    ids = [f"{path.parent.name}/{path.name}" for path in episode_folders(run_dir)]
    ids = random.Random(0).sample(ids, min(len(ids), 2 * opened))
    with served(run_dir) as address, chromium() as page:
        figures = measure_page(page, address, ids[:opened])
    start = time.perf_counter()
    command = [*COMMAND, "view", str(run_dir), "--export", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    figures["export_seconds"] = time.perf_counter() - start
    with chromium() as page:
        figures |= measure_page(page, (folder / "index.html").as_uri(), ids[opened:], "export_")
    return {**figures, "export_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())}


def main() -> None:
    parser = Arguments(__doc__, "few episodes of one task")
    parser.add_argument("--run", type=Path, help="whose episodes are copied; by default, shipped tasks are played")
    parser.add_size("--copies", 2000, 60, "episodes of the one run")
    parser.add_size("--episodes", 100_000, 80, "of all runs")
    parser.add_size("--runs", 20, 2, "in the folder")
    arguments = parser.parse()
    with tempfile.TemporaryDirectory() as scratch:
        record_runs(Path(scratch), arguments.runs, arguments.episodes)
        figures = {**machine(), "episodes": arguments.episodes, "runs": arguments.runs}
        figures |= measure_runs(Path(scratch), repeats=2 if arguments.smoke else 10)
    with tempfile.TemporaryDirectory() as scratch:
        played = arguments.run or Path(scratch) / "played"
        if arguments.run is None:
            play_tasks(TASKS[: 1 if arguments.smoke else None], played)
        sources = episode_folders(played)
        run_dir = Path(scratch) / "run"
        multiply(sources, arguments.copies, run_dir)
        if (played / "metrics.jsonl").is_file():
            shutil.copy(played / "metrics.jsonl", run_dir)
        figures |= {"copies": arguments.copies, "copied_from": len(sources)}
        figures |= measure(run_dir, Path(scratch) / "exported", opened=5 if arguments.smoke else OPENED)
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
