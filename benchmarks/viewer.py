"""A viewer of a run, and a browser that looks at it: for `viewer_pictures.py`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

COMMAND = [sys.executable, "-m", "arpo_verl.cli.main"]


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
