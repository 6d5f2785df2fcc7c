"""This guest does not record video, and says so."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from .messages import Request, Response


def routes() -> dict[tuple[str, str], Callable[[Request], Response]]:
    """Return the endpoints of this module, which refuse clearly."""
    refusal = Response.error(
        HTTPStatus.NOT_IMPLEMENTED,
        "the embedded desktop records no video: the screenshots of a trajectory show each step",
    )
    return {("POST", path): lambda request: refusal for path in ("/start_recording", "/end_recording")}
