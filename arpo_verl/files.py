"""Files that are there whole or not at all, whatever kills the process or the machine. Pure."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

PART_PREFIX = ".part-"
"""Of what an interrupted write leaves behind."""

_CHUNK_BYTES = 1 << 20


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under another name, sync it, and give it its own name in one step.

    Raises:
        OSError: the disk refuses; `path` is as it was.
    """
    part = path.with_name(f"{PART_PREFIX}{uuid4().hex}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view[:_CHUNK_BYTES]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(part, path)


def link_whole(source: Path, path: Path) -> bool:
    """Give a file that is whole a second name; False where it is gone or the file system cannot."""
    try:
        os.link(source, path)
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last: a file's own sync does not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_files(folder: Path, prefixes: tuple[str, ...], keep: frozenset[str]) -> None:
    """Remove the files of `folder` whose name begins with one of `prefixes` and that are not to be kept."""
    for entry in os.scandir(folder):
        if entry.name.startswith(prefixes) and entry.name not in keep and entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)


@contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """Give a scratch folder that takes `target`'s place when the block ends well, and vanishes when it does not."""
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
