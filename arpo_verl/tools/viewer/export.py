"""Exports a run to a folder that opens from disk: the page, its documents as scripts, and the screenshots."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from arpo_verl.errors import ConfigError
from arpo_verl.records.json_files import dump_json
from arpo_verl.records.layout import screenshot_names
from arpo_verl.records.run import Run, Snapshot
from arpo_verl.tools.viewer.documents import (
    episode_document,
    episode_rows,
    episodes_document,
    frontier_document,
    metrics_document,
    run_document,
    tokens_document,
)
from arpo_verl.tools.viewer.evaluation import evaluation_document
from arpo_verl.tools.viewer.overview.content import overview_document
from arpo_verl.tools.viewer.page import ASSETS, index_page

MARKER = ".arpo-export"
"""A file that marks a folder as an export, which a later export may replace."""
_PARTS = ("data", "shots", "assets")


@dataclass(frozen=True)
class Exported:
    """Describes a finished export."""

    index: Path
    episodes: int
    size_bytes: int
    """Size of the screenshots, which are nearly all of it."""


def export_run(run: Run, snapshot: Snapshot, target: Path, *, progress: bool = True) -> Exported:
    """Write a snapshot to `target`, which then opens without a server.

    Raises:
        ConfigError: the folder has other content, or the snapshot no episode.
        OSError: a file cannot be written.
    """
    if not snapshot.by_id:
        raise ConfigError(f"no episode in {run.trajectories} matches; change --steps")
    screenshots = {episode_id: _screenshots(run, episode_id) for episode_id in snapshot.by_id}
    size_bytes = sum(path.stat().st_size for paths in screenshots.values() for path in paths)
    _prepare(target)
    _write_page(target)
    _write_document(target, "api/run", run_document(run, snapshot, live=False))
    _write_document(target, "api/overview", overview_document(run, snapshot))
    _write_document(target, "api/episodes", episodes_document(episode_rows(snapshot).values()))
    _write_document(target, "api/metrics", metrics_document(run))
    _write_document(target, "api/frontier", frontier_document(run))
    _write_document(target, "api/evaluation", evaluation_document(run))
    with tqdm(total=size_bytes, unit="B", unit_scale=True, desc="export", disable=not progress) as bar:
        for written in _write_episodes(run, snapshot, target, screenshots):
            bar.update(written)
    return Exported(target / "index.html", len(snapshot.by_id), size_bytes)


def _screenshots(run: Run, episode_id: str) -> list[Path]:
    """Return an episode's screenshots, without links, which could lead out of the run."""
    try:
        folder = run.folder(episode_id)
        paths = [folder / name for name in screenshot_names(folder)]
    except (KeyError, OSError):  # removed since the snapshot
        return []
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _prepare(target: Path) -> None:
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / MARKER).is_file())):
        raise ConfigError(f"--export must be a new or empty folder, or an earlier export, but {target} is neither")
    for part in _PARTS:
        shutil.rmtree(target / part, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    (target / MARKER).touch()


def _write_page(target: Path) -> None:
    shutil.copytree(ASSETS, target / "assets", ignore=shutil.ignore_patterns("index.html"), dirs_exist_ok=True)
    (target / "index.html").write_text(index_page("files"), encoding="utf-8")


def _write_episodes(run: Run, snapshot: Snapshot, target: Path, screenshots: dict[str, list[Path]]) -> Iterator[int]:
    """Write each episode's document and screenshots, and yield its bytes."""
    for episode_id, paths in screenshots.items():
        try:
            document, tokens = episode_document(run, snapshot, episode_id), tokens_document(run, episode_id)
            sizes = [_copy(path, target / "shots" / episode_id / path.name) for path in paths]
            _write_document(target, f"api/episode/{episode_id}", document)
            _write_document(target, f"api/tokens/{episode_id}", tokens)
        except (KeyError, FileNotFoundError):  # removed since the snapshot: the page says that it is missing
            continue
        except OSError as error:  # a foreign folder, whose long name leaves no room for a suffix
            if error.errno != errno.ENAMETOOLONG:
                raise
            continue
        yield sum(sizes)


def _copy(source: Path, target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    return target.stat().st_size


def _write_document(target: Path, path: str, document: dict[str, object]) -> None:
    """Write a document as a script, since a page opened from disk may load scripts but not read files."""
    file = target / "data" / f"{path.removeprefix('api/')}.js"
    file.parent.mkdir(parents=True, exist_ok=True)
    # The content is ASCII; "</" is escaped too, so that it stays a script even inside HTML.
    content = b"ARPO_RUN(%s,%s);\n" % (dump_json(path), dump_json(document))
    file.write_bytes(content.replace(b"</", b"<\\/"))
