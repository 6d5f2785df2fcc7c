"""The pictures of docs/viewer.md, of real runs.

    python benchmarks/viewer_pictures.py RUN [--evaluation FOLDER] [--out docs/images/viewer]

RUN is a run's folder of a trainer with frontier sampling and replays, for example of

    arpo-verl train embedded run_dir=runs/embedded data.tasks.sampling=frontier

The runs that are listed are those of its parent folder. `--evaluation` is what `arpo-verl evaluate` wrote. A page for
which the run has nothing gets no picture, and the script says so. For the page of the running desktops, a copy of the
run says of its newest episodes that they are being played.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from playwright.sync_api import Page, ViewportSize
from viewer import chromium, served

from arpo_verl.records.run import open_run

OUT = Path(__file__).parents[1] / "docs" / "images" / "viewer"
SIZE = ViewportSize(width=1280, height=1040)
RUNNING = 4


def picture(page: Page, address: str, out: Path, scheme: Literal["light", "dark"] = "light") -> None:
    """Take one, as large as the window."""
    page.emulate_media(color_scheme=scheme)
    page.goto("about:blank")
    page.goto(address)
    page.locator("main h1").wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_function("() => !document.querySelector('.waiting')")
    page.keyboard.press("d")  # of two episodes, to the first difference
    page.evaluate("Promise.all([...document.images].map((image) => image.loading === 'lazy' || image.decode()))")
    page.wait_for_timeout(500)  # the charts are drawn as they come into the window
    page.screenshot(path=out)
    print(out)


def chosen(run: Path) -> dict[str, str]:
    """The addresses of the pages that show an episode: a failure, if possible one that a replay replaced."""
    snapshot = open_run(run).snapshot()
    episodes = [episode for episode in snapshot.episodes if episode.screenshots > 1]
    failures = [episode for episode in episodes if episode.success == 0]
    replaced = [episode for episode in failures if snapshot.training(episode.id).replayed_by is not None]
    failure = max(replaced or failures, key=lambda episode: episode.num_turns)
    of_task = [episode for episode in episodes if episode.task_id == failure.task_id and episode.success == 1]
    success = snapshot.training(failure.id).replayed_by or of_task[-1].id
    turns = open_run(run).episode(failure.id)["turns"]
    clicks = [number for number, turn in enumerate(turns, 1) if any(a["action"] == "Click" for a in turn["actions"])]
    return {
        "episode": f"episode/{quote(failure.id)}?turn={clicks[0] if clicks else 1}",
        "compare": f"compare/{quote(failure.id)}?with={quote(success, '')}",
    }


def as_if_running(run: Path, copy: Path) -> None:
    """Copy the run, with its newest episodes as if they were being played."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    episodes = [episode for episode in open_run(run).snapshot().episodes if episode.screenshots > 1]
    newest = list({episode.task_id: episode for episode in episodes}.values())[-RUNNING:]
    desktops = []
    for number, episode in enumerate(newest):
        folder = copy / "trajectories" / episode.id
        content = json.loads((folder / "episode.json").read_text(encoding="utf-8"))
        names = ("task_id", "instruction", "step", "uid", "session", "desktop")
        live: dict[str, Any] = {name: content[name] for name in names}
        live |= {"started_at": time.time() - 5 * number, "turns": content["turns"][: episode.screenshots - 1]}
        hidden = folder.with_name(f".{folder.name}-live")
        folder.rename(hidden)
        (hidden / "episode.json").unlink()
        (hidden / "live.json").write_text(json.dumps(live), encoding="utf-8")
        state = {"name": content["desktop"], "host": "127.0.0.1", "state": "busy", "since": time.time() - 5}
        desktops.append({**state, "task_id": episode.task_id})
    pool = {"time": time.time(), "desktops": desktops, "waiting": 0}
    (copy / "pool.json").write_text(json.dumps(pool), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    pages = {name: name for name in ("overview", "episodes", "heatmap", "metrics")} | chosen(arguments.run)
    if open_run(arguments.run).frontier():
        pages["frontier"] = "frontier"
    with chromium() as page:
        page.set_viewport_size(SIZE)
        with served(arguments.run.resolve().parent) as address:
            names = sorted(path.name for path in arguments.run.resolve().parent.iterdir() if path.is_dir())
            picture(page, f"{address}#/runs?runs={quote('/'.join(names[:2]), '')}", arguments.out / "runs.png")
        with served(arguments.run) as address:
            for name, place in pages.items():
                picture(page, f"{address}#/{place}", arguments.out / f"{name}.png")
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / arguments.run.resolve().name
            as_if_running(arguments.run, copy)
            with served(copy) as address:
                picture(page, f"{address}#/live", arguments.out / "live.png", "dark")
        if arguments.evaluation is not None:
            with served(arguments.evaluation) as address:
                picture(page, f"{address}#/evaluation", arguments.out / "evaluation.png")
    taken = {*pages, "runs", "live", *(["evaluation"] if arguments.evaluation else [])}
    print(f"no picture of: {', '.join(sorted({path.stem for path in arguments.out.glob('*.png')} - taken)) or 'none'}")


if __name__ == "__main__":
    main()
