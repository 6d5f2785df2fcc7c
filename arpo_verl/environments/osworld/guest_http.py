"""What the OSWorld client said to the guest and what came of it, seen where its own code only logs failures.

Its getters return None, and its set-up steps return as if done, when the guest refuses a connection. So the name
`requests` in its modules is replaced by a `GuestHttp`, which sends as before and keeps a log for each thread.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

logger = logging.getLogger(__name__)

# For calls that the client makes without a time-out. The guest itself ends a command after 120 s.
DEFAULT_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Exchange:
    """One request: the HTTP status of its reply, or the error where there was none."""

    address: str
    """`host:port`"""
    path: str
    status: int | None
    error: str = ""
    body: str = ""
    """The start of a reply that is not 200."""


class _Log(threading.local):
    def __init__(self) -> None:  # in each thread that looks
        self.exchanges: list[Exchange] = []


_log = _Log()


def exchanges() -> list[Exchange]:
    """What this thread's client exchanged since `clear_exchanges`, in order."""
    return _log.exchanges


def clear_exchanges() -> None:
    """Start this thread's log anew."""
    exchanges().clear()


def unanswered(address: str) -> list[Exchange]:
    """Requests to `address` that got no reply, and that no later one to the same path made good."""
    last = {e.path: e for e in exchanges() if e.address == address}
    return [e for e in last.values() if e.status is None]


class GuestHttp:
    """Stands in for the module `requests`: every other name is that module's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(requests, name)

    def get(self, url: str, **kwargs: Any) -> requests.Response:
        return self._send("GET", url, kwargs)

    def post(self, url: str, data: Any = None, json: Any = None, **kwargs: Any) -> requests.Response:
        return self._send("POST", url, {"data": data, "json": json, **kwargs})

    def _send(self, method: str, url: str, kwargs: dict[str, Any]) -> requests.Response:
        kwargs.setdefault("timeout", DEFAULT_TIMEOUT_S)
        parts = urlsplit(url)
        try:
            response = requests.request(method, url, **kwargs)
        except requests.RequestException as error:
            exchanges().append(Exchange(parts.netloc, parts.path, None, f"{type(error).__name__}: {error}"))
            raise
        body = "" if response.status_code == 200 else response.text[:300]
        exchanges().append(Exchange(parts.netloc, parts.path, response.status_code, body=body))
        return response
