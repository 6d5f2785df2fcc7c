"""An episode's folder is hidden while we write it; at the end it goes to its place in one step."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo_verl.lib.files import replace_directory, write_whole
from arpo_verl.records.documents import EpisodeRecord
from arpo_verl.records.episode_file import read_episode
from arpo_verl.records.layout import (
    EPISODE_FILE,
    HARNESS_LOG_FILE,
    HIDDEN,
    LIVE_FILE,
    TOKENS_FILE,
    is_screenshot,
    screenshot_name,
)
from arpo_verl.records.listing import StepListings

logger = logging.getLogger(__name__)


class EpisodeFolder:
    """Writes one episode below `directory`. Every method may raise `OSError` if it cannot write.

    It does not force data to the disk: after a power failure only a record is lost.

    Args:
        directory: the folder of all episodes.
        place: the finished folder's place in it.
    """

    def __init__(self, directory: Path, place: Path):
        self._target = directory / place
        self._scratch: Path | None = None
        self._screenshots: list[str] = []
        self._live_bytes = 0

    def open(self) -> None:
        """Make the hidden folder."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._target.with_name(f"{HIDDEN}{self._target.name}-{secrets.token_hex(4)}")
        scratch.mkdir()
        self._scratch = scratch

    def write_live(self, document: Mapping[str, Any]) -> None:
        """Write what is known so far over the previous state.

        It overwrites the file instead of replacing it: ext4 writes a replaced file to the disk at once, which costs
        fifty times as much. A reader at that very moment finds no JSON, and reads again.
        """
        content = _json(document, indent=None).ljust(self._live_bytes)
        file = os.open(self._open_scratch / LIVE_FILE, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, content, 0)
        finally:
            os.close(file)
        self._live_bytes = len(content)

    def add_screenshot(self, screenshot: bytes) -> None:
        """Write the next screenshot."""
        name = screenshot_name(len(self._screenshots), screenshot)
        write_whole(self._open_scratch / name, screenshot, sync=False)
        self._screenshots.append(name)

    def finish(self, record: EpisodeRecord, *, keep_screenshots: bool = True) -> Path:
        """Write the rest, put the folder in its place, and return that."""
        scratch = self._open_scratch
        if record.seen is not None:
            self._reorder(record.seen)
        if not keep_screenshots:
            for name in self._screenshots:
                (scratch / name).unlink()
        (scratch / LIVE_FILE).unlink(missing_ok=True)
        (scratch / EPISODE_FILE).write_bytes(_json(record.content))
        (scratch / TOKENS_FILE).write_bytes(_tokens(record))
        if record.log:
            (scratch / HARNESS_LOG_FILE).write_bytes(record.log)
        # An existing folder is of the same session, recorded before the run was resumed.
        replace_directory(scratch, self._target)
        self._scratch = None
        return self._target

    def _reorder(self, seen: Sequence[int]) -> None:
        """Renumber the screenshots: the first is the one with the number `seen[0]`, and so on."""
        paths = [self._open_scratch / name for name in self._screenshots]
        contents = [path.read_bytes() for path in paths]
        for path in paths:
            path.unlink()
        self._screenshots = []
        for number in seen:
            self.add_screenshot(contents[number])

    def discard(self) -> None:
        """Remove an unfinished folder."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    @property
    def _open_scratch(self) -> Path:
        assert self._scratch is not None, "opened before it is written to"
        return self._scratch


def write_episode(directory: Path, record: EpisodeRecord, screenshots: Sequence[bytes]) -> Path:
    """Write a finished episode; its folder appears completely or not at all.

    Raises:
        OSError: the files cannot be written.
    """
    folder = EpisodeFolder(directory, record.folder)
    try:
        folder.open()
        for screenshot in screenshots:
            folder.add_screenshot(screenshot)
        return folder.finish(record)
    finally:
        folder.discard()


def remove_unfinished(directory: Path) -> int:
    """Remove the episodes that a killed run had not finished; return how many. Nobody may be playing one now."""
    listings = StepListings(directory)
    listings.refresh()
    unfinished = list(listings.unfinished())
    for path in unfinished:
        shutil.rmtree(path, ignore_errors=True)
    if unfinished:
        logger.info("removed %d episodes below %s that were never finished", len(unfinished), directory)
    return len(unfinished)


def remove_finished(directory: Path, uids: Collection[str], kept: Collection[Path]) -> None:
    """Remove the finished episodes of these prompts, of whichever step, except the folders in `kept`."""
    for folder in directory.glob("step_*/*"):
        uid = folder.name.rpartition("__")[2].rpartition("_")[0]
        if uid in uids and folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def add_missing_screenshots(folder: Path, screenshots: Sequence[bytes]) -> None:
    """Write the screenshots that a finished episode's record names but its folder lacks, if the folder exists.

    Raises:
        OSError: the files cannot be written.
    """
    try:
        names = read_episode(folder).screenshots
    except FileNotFoundError:
        return
    for name, screenshot in zip(names, screenshots, strict=False):
        if is_screenshot(name) and not (folder / name).exists():
            write_whole(folder / name, screenshot, sync=False)


def _json(document: Mapping[str, Any], indent: int | None = 1) -> bytes:
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=str) + "\n"
    return text.encode("utf-8", errors="replace")


def _tokens(record: EpisodeRecord) -> bytes:
    texts: Sequence[Sequence[str] | None] = record.tokens or [None] * len(record.replies)
    replies = [{**dataclasses.asdict(reply), "texts": one} for reply, one in zip(record.replies, texts, strict=True)]
    return json.dumps(replies, separators=(",", ":")).encode() + b"\n"
