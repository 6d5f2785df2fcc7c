"""Take OSWorld's task files from an archive of its repository: distrust them, check the commit, store them.

GitHub or `git archive` makes the archive of a commit, and names that commit in its first header. We unpack nothing: we
read files with the expected names, up to a limit, parse them, and write them again.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from arpo_verl.errors import ConfigError, FetchError
from arpo_verl.lib.files import FULL, write_whole
from arpo_verl.lib.untrusted import open_regular, read_regular
from arpo_verl.tasks.schema import problems_of
from arpo_verl.versions import OSWORLD_ARCHIVE, OSWORLD_COMMIT

INDEX = "test_all.json"
INDEX_SHA256 = "9ebc5187cbd727ef26c24626820076b102fff812863c640a67c467fea9542ab5"
"""The hash of `test_all.json` at that commit: 369 tasks of ten domains."""

MAX_ARCHIVE_BYTES = 512 << 20
_MAX_UNPACKED_BYTES = 1 << 30
_MAX_FILE_BYTES = 1 << 20
"""The largest task file has 11 KB, the largest list 17 KB."""
_WANTED = re.compile(r"[^/]+/evaluation_examples/(test_\w{1,40}\.json|examples/\w{1,40}/[\w-]{1,80}\.json)", re.ASCII)
_SHOWN = 5
STALL_S = 60.0
"""Seconds without a byte after which a download fails."""
_CHUNK_BYTES = 1 << 18

Files = Mapping[str, bytes]
"""Relative name -> content, as in OSWorld's folder `evaluation_examples`."""


def download(url: str, path: Path, max_bytes: int) -> None:
    """Fetch `url` into `path`.

    Raises:
        ConfigError: `url` is no web address.
        FetchError: the server refuses, cannot be reached, or sends more than `max_bytes`.
        OSError: this machine cannot write the file.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must begin with https:// or http://, got {url!r}")
    try:
        with urllib.request.urlopen(url, timeout=STALL_S) as answer, path.open("wb") as file:  # noqa: S310
            while chunk := answer.read(_CHUNK_BYTES):
                if file.tell() + len(chunk) > max_bytes:
                    raise FetchError(
                        f"{url} sends more than {max_bytes >> 20} MiB: it is no archive of OSWorld's tasks"
                    )
                file.write(chunk)
            if answer.length:  # `read(n)` does not raise when the connection ends
                raise FetchError(f"the download of {url} failed: the connection ended {answer.length} bytes early")
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchError(f"{url} answered {error.code} {error.reason}") from error
    except (ValueError, http.client.InvalidURL) as error:
        raise ConfigError(f"--url must be a web address, got {url!r}: {error}") from error
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and (error.filename is not None or error.errno in FULL):
            raise  # of the file; the network's errors have no name
        raise FetchError(f"the download of {url} failed: {getattr(error, 'reason', error)}") from error


def read_archive(path: Path) -> Files:
    """Read the lists and tasks of an archive, and parse each once.

    Raises:
        FetchError: it is no archive of the pinned commit, or incomplete.
        OSError: it cannot be read.
    """
    files: dict[str, bytes] = {}
    try:
        with open_regular(path) as raw, gzip.GzipFile(fileobj=raw) as unzipped:
            bounded = _Bounded(unzipped)
            with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as archive:
                for member in archive:
                    _check_commit(path, archive.pax_headers.get("comment"))
                    if wanted := _WANTED.fullmatch(member.name):
                        files[wanted[1]] = _content(archive, member)
            while bounded.read(_CHUNK_BYTES):
                pass  # the checksum is at the end
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise FetchError(f"{path} is not a complete .tar.gz archive: {error}") from error
    check_files(files)
    return files


class _Bounded:
    """A stream that reads no more than the limit: a few bytes of gzip can unpack to any size."""

    def __init__(self, stream: gzip.GzipFile):
        self._stream, self._left = stream, _MAX_UNPACKED_BYTES

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise FetchError(f"the archive unpacks to more than {_MAX_UNPACKED_BYTES >> 30} GiB: it is not OSWorld's")
        return content


def _check_commit(path: Path, commit: str | None) -> None:
    if commit != OSWORLD_COMMIT:
        found = f"is of commit {commit!r:.50}" if commit else "does not say of which commit it is"
        raise FetchError(
            f"{path} {found}, not of OSWorld's {OSWORLD_COMMIT}. Download {OSWORLD_ARCHIVE}, or make it in a clone: "
            f"git archive --format=tar.gz --prefix=OSWorld/ -o osworld.tar.gz {OSWORLD_COMMIT}"
        )


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isreg() and member.size <= _MAX_FILE_BYTES else None
    if file is None:
        raise FetchError(f"{member.name:.200} must be a file of at most {_MAX_FILE_BYTES >> 20} MiB")
    return file.read()


def check_files(files: Files) -> None:
    """Check that the index is the pinned one, and that each of its tasks is there and valid.

    Raises:
        FetchError: names what is wrong.
    """
    if hashlib.sha256(files.get(INDEX, b"")).hexdigest() != INDEX_SHA256:
        raise FetchError(f"evaluation_examples/{INDEX} is not the one of OSWorld's commit {OSWORLD_COMMIT}")
    wrong = [f"{name}: {what}" for name, what in _problems(files)]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise FetchError(f"{len(wrong)} of OSWorld's files are missing or wrong: {'; '.join(wrong[:_SHOWN])}{more}")


def _problems(files: Files) -> Iterator[tuple[str, str]]:
    for name in {*files, *_named(json.loads(files[INDEX]))}:
        try:
            content = json.loads(files[name])
        except KeyError:
            yield name, "missing"
        except (ValueError, RecursionError) as error:
            yield name, f"not JSON ({error})"
        else:
            if name.startswith("examples/"):
                yield from ((name, what) for what in _task_problems(content, Path(name).stem))


def _task_problems(spec: Any, task_id: str) -> list[str]:
    return problems_of(spec, None) or ([] if spec["id"] == task_id else [f"its id is {spec['id']!r:.80}"])


def _named(index: Mapping[str, list[str]]) -> list[str]:
    return [f"examples/{domain}/{task_id}.json" for domain, ids in index.items() for task_id in ids]


def count_by_domain(files: Files) -> dict[str, int]:
    """Return how many tasks of each domain `test_all.json` lists."""
    return {domain: len(ids) for domain, ids in json.loads(files[INDEX]).items()}


def store_files(files: Files, folder: Path) -> int:
    """Write the files that `folder` lacks, the index last, which marks a complete folder; return how many.

    Raises:
        FetchError: a file of that name has another content; it has written nothing then.
        OSError: a file cannot be written; written files stay, and the next call writes the rest.
    """
    there = [name for name in files if os.path.lexists(folder / name)]
    others = [name for name in there if not _same(folder / name, files[name])]
    if others:
        raise FetchError(
            f"{folder} has {len(others)} files that differ from OSWorld's commit {OSWORLD_COMMIT[:12]}, such as "
            f"{others[0]}, and we do not overwrite them; choose another --folder, or move them away"
        )
    lacking = sorted(files.keys() - there, key=lambda name: (name == INDEX, name))
    for name in lacking:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, files[name], sync=False)
    return len(lacking)


def stored_files(folder: Path) -> Files | None:
    """Return OSWorld's tasks in `folder`, if all of them are there and right; otherwise None."""
    try:
        files = {INDEX: _read(folder / INDEX)}
        if hashlib.sha256(files[INDEX]).hexdigest() == INDEX_SHA256:
            files |= {name: _read(folder / name) for name in _named(json.loads(files[INDEX]))}
        check_files(files)
    except (FetchError, OSError):
        return None
    return files


def _same(path: Path, content: bytes) -> bool:
    with open_regular(path) as file:
        return file.read(len(content) + 1) == content


def _read(path: Path) -> bytes:
    return read_regular(path, _MAX_FILE_BYTES)
