"""The pictures of the viewer in README and in docs/, of one real run.

    python benchmarks/viewer_pictures.py RUN [--out docs/images/viewer]

RUN is a run's folder, for example runs/demo after `make demo`. A page for which it has nothing gets no picture: the
running desktops are taken while it trains, an evaluation of a folder that `arpo-verl evaluate` wrote. The list of runs
is that of its parent folder.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from arpo_verl.records.run import open_run
from arpo_verl.records.runs import RunsFolder
from arpo_verl.tools.viewer.evaluation import has_evaluation

OUT = Path(__file__).parents[1] / "docs" / "images" / "viewer"
WIDTH = 1280
RUNNING = "() => document.querySelectorAll('.running .badge').length >= 4"
COLORS = 128


@contextmanager
def served(run_dir: Path) -> Iterator[str]:
    """The address of a viewer of this run, just started."""
    command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "view", str(run_dir), "--port", "0"]
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


def picture(page: Page, address: str, out: Path, height: int) -> None:
    """Take one, as large as the window."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.goto("about:blank")
    page.goto(address)
    page.locator("main h1").wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_function(RUNNING if out.stem == "live" else "() => !document.querySelector('.waiting')")
    page.keyboard.press("d")  # of two episodes, to the first difference
    page.evaluate("Promise.all([...document.images].map((image) => image.loading === 'lazy' || image.decode()))")
    page.wait_for_timeout(500)  # the charts are drawn as they come into the window
    page.screenshot(path=out)
    Image.open(out).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(out, optimize=True)
    print(out)


def pages_of(run_dir: Path) -> dict[str, tuple[str, int]]:
    """What there is to show: picture -> place and height. The episode is a failure that a stored success replaced."""
    run = open_run(run_dir)
    if run.is_live():
        return {"live": ("live", 600)}
    if has_evaluation(run):
        return {"evaluation": ("evaluation", 600)}
    pages = {"overview": ("overview", 452), "episodes": ("episodes", 560), "heatmap": ("heatmap", 620)}
    pages["metrics"] = ("metrics", 560)
    if run.frontier():
        pages["frontier"] = ("frontier", 560)
    snapshot = run.snapshot()
    by = {episode.id: snapshot.training(episode.id).replayed_by for episode in snapshot.episodes}
    failure, success = next(((failure, success) for failure, success in by.items() if success), (None, None))
    if failure and success:
        pages["episode"] = (f"episode/{quote(failure)}?turn=1", 800)
        pages["compare"] = (f"compare/{quote(failure)}?with={quote(success, '')}", 820)
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    pages, parent = pages_of(arguments.run), arguments.run.resolve().parent
    with chromium() as page:
        with served(arguments.run) as address:
            for name, (place, height) in pages.items():
                page.emulate_media(color_scheme="dark" if name == "live" else "light")
                picture(page, f"{address}#/{place}", arguments.out / f"{name}.png", height)
        if "overview" in pages and len(names := RunsFolder(parent).names()) > 1:
            with served(parent) as address:
                picture(page, f"{address}#/runs?runs={quote('/'.join(names), '')}", arguments.out / "runs.png", 545)


if __name__ == "__main__":
    main()
