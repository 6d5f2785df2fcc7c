"""This downloads a file over HTTP, up to a limit. An interrupted download resumes where it stopped."""

from __future__ import annotations

import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from arpo_verl.errors import FetchError

logger = logging.getLogger(__name__)

ATTEMPTS = 5
RETRY_S = 1.0
STALL_S = 60.0
"""Seconds without a byte after which an attempt fails."""

_CHUNK_BYTES = 1 << 18
_PARTIAL = 206
_RANGE_REFUSED = 416
_Broken = (http.client.HTTPException, OSError)


def download(url: str, part: Path, max_bytes: int) -> None:
    """Fetch `url` into `part`. It keeps the bytes in `part` if the server sends the rest; otherwise it replaces them.

    Raises:
        FetchError: the server refuses, cannot be reached, or sends more than `max_bytes`. `part` stays.
        OSError: this machine cannot write the file.
    """
    if not url.startswith(("http://", "https://")):
        raise FetchError(f"--url must begin with https:// or http://, got {url!r}")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _answer(url, part) as (answer, begin):
                _write(_chunks(answer, begin, max_bytes), part, begin)
            return
        except _Interrupted as error:
            if attempt == ATTEMPTS:
                raise FetchError(f"the download of {url} failed {ATTEMPTS} times: {error}") from error
            logger.warning("download interrupted (%s); attempt %d of %d", error, attempt + 1, ATTEMPTS)
            time.sleep(RETRY_S)


class _Interrupted(Exception):
    """The network failed; another attempt may succeed."""


@contextmanager
def _answer(url: str, part: Path) -> Iterator[tuple[http.client.HTTPResponse, int]]:
    """Yield the server's answer, and the byte of the file at which it begins."""
    have = part.stat().st_size if part.exists() else 0
    try:
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
        answer = urllib.request.urlopen(request, timeout=STALL_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _Interrupted(f"{error.code} {error.reason}") from error
        if error.code != _RANGE_REFUSED:
            raise FetchError(f"{url} answered {error.code} {error.reason}") from error
        part.unlink()  # the part is complete, or of another file: start from the beginning
        raise _Interrupted("the server has no more of it, so it starts from the beginning") from error
    except (ValueError, http.client.InvalidURL) as error:
        raise FetchError(f"--url must be a web address, got {url!r}: {error}") from error
    except _Broken as error:
        raise _Interrupted(str(getattr(error, "reason", error))) from error
    with answer:
        resumed = answer.status == _PARTIAL and str(answer.headers["Content-Range"]).startswith(f"bytes {have}-")
        yield answer, have if resumed else 0


def _chunks(answer: http.client.HTTPResponse, begin: int, max_bytes: int) -> Iterator[bytes]:
    done = begin
    while True:
        try:
            chunk = answer.read(_CHUNK_BYTES)
        except _Broken as error:
            raise _Interrupted(str(error)) from error
        done += len(chunk)
        if done > max_bytes:
            raise FetchError(f"{answer.url} sends more than {max_bytes >> 20} MiB: it is no archive of OSWorld's tasks")
        if not chunk:
            break
        yield chunk
    if answer.length:  # `read(n)` does not raise when the connection ends
        raise _Interrupted(f"the connection ended {answer.length} bytes early")


def _write(chunks: Iterator[bytes], part: Path, begin: int) -> None:
    with _opened(part, begin) as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened(part: Path, begin: int) -> Iterator[BinaryIO]:
    with part.open("r+b" if begin else "wb") as file:
        file.seek(begin)
        yield file
