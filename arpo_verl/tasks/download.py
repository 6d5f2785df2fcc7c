"""Download a file over HTTP, up to a limit."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from arpo_verl.errors import FetchError

STALL_S = 60.0
"""Seconds without a byte after which the download fails."""
_CHUNK_BYTES = 1 << 18


def download(url: str, path: Path, max_bytes: int) -> None:
    """Fetch `url` into `path`.

    Raises:
        FetchError: the server refuses, cannot be reached, or sends more than `max_bytes`.
        OSError: this machine cannot write the file.
    """
    if not url.startswith(("http://", "https://")):
        raise FetchError(f"--url must begin with https:// or http://, got {url!r}")
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
        raise FetchError(f"--url must be a web address, got {url!r}: {error}") from error
    except (http.client.HTTPException, urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise FetchError(f"the download of {url} failed: {getattr(error, 'reason', error)}") from error
