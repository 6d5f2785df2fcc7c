"""Note what the OSWorld client sent to the guest and what came back, since the client only logs failures.

Its getters return None, and its set-up steps return as if done, when the guest refuses a connection. So we replace the
name `requests` in its modules by a `GuestHttp`, which sends as before and notes each request. It reads answers
up to a limit: the policy controls the guest, and a sparse file of 1.5 GiB costs it nothing.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from urllib3.exceptions import ReadTimeoutError

from arpo_verl.desktops.osworld.apart import marked
from arpo_verl.desktops.osworld.calls import Call, log
from arpo_verl.types import GuestAnswer, GuestRequest

logger = logging.getLogger(__name__)

# The time-out of calls that the client makes without one. The guest itself ends a command after 120 s.
DEFAULT_TIMEOUT_S = 180.0

_MIB = 1 << 20
MAX_ANSWER = {"/file": 256 * _MIB, "/screenshot": 64 * _MIB, "/wallpaper": 64 * _MIB, "/accessibility": 32 * _MIB}
"""Most bytes of an answer, by path. The largest files that OSWorld's evaluators read are films of some ten MB; its
screenshots have 1 to 8 MB, an accessibility tree 0.1 to 2 MB."""
MAX_OTHER_ANSWER = 16 * _MIB
"""Most bytes of any other answer, such as a command's output."""
MAX_ANSWERS = 1024 * _MIB
"""Most bytes of all answers together since `ClientLog.clear`: of an evaluation, or of an action."""
_CHUNK = 1 << 16

# The field that the client needs in an answer's JSON, by path; without it, the client silently takes it for no answer.
_JSON_FIELD = {
    "/accessibility": "AT",
    "/desktop_path": "desktop_path",
    "/execute": "output",
    "/list_directory": "directory_tree",
    "/run_bash_script": "output",
    "/run_python": "output",
    "/setup/execute": "output",
    "/setup/execute_with_verification": "output",
    "/screen_size": "width",
    "/terminal": "output",
    "/window_size": "width",
}

# Every guest serves these paths. If one lacks them, or refuses the client's own requests, its server is not the
# client's.
_ALWAYS = {"/accessibility", "/execute", "/run_bash_script", "/run_python", "/screen_size", "/screenshot"}
_ALWAYS |= {"/setup/execute", "/terminal"}
# Paths whose answer is about a file or a program that the policy may have removed.
_OF_FILES = {"/execute", "/file", "/list_directory", "/run_bash_script", "/setup/execute", "/setup/launch"}
_OF_FILES |= {"/setup/change_wallpaper", "/setup/open_file", "/setup/upload", "/wallpaper"}
# Errors of a guest that is alive: not permitted, no such file or program, argument list too long, no program's format,
# permission denied, not a directory, a directory, name too long, too many links; no reader at a pipe.
_OF_ITS_OWN = {1, 2, 6, 7, 8, 13, 20, 21, 36, 40}
# On Windows: no such file, no such folder, access denied, open in another program, no program's format, name too long,
# not a folder.
_OF_ITS_OWN_ON_WINDOWS = {2, 3, 5, 32, 193, 206, 267}


@dataclass(frozen=True)
class Exchange:
    """One request, with the HTTP status of its reply, or the error if there was no usable reply."""

    address: str
    """`host:port`"""
    path: str
    status: int | None
    """The reply's status; 413, which no guest sends, if the answer was too large."""
    error: str = ""
    body: str = ""
    """The start of the reply, if its status is not 200."""
    request: str = ""
    """A digest of method, path, query and body: equal only for equal requests."""
    caller: Call = field(default_factory=lambda: log.call)
    """The client's call that sent it."""


def latest(exchanged: Iterable[Exchange]) -> list[Exchange]:
    """Return the last answer to each request of each call, since a call may repeat a request."""
    return list({(e.caller, e.address, e.request or e.path): e for e in exchanged}.values())


def unanswered(address: str, exchanged: Iterable[Exchange]) -> list[Exchange]:
    """Return the requests to `address` that a call never got a usable answer to, however often it sent them."""
    return [e for e in latest(exchanged) if e.address == address and in_trouble(e)]


def in_trouble(exchange: Exchange) -> bool:
    """Return whether no usable answer came: none at all, a server error, or a redirection."""
    if exchange.status is None or exchange.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return True
    if HTTPStatus.MULTIPLE_CHOICES <= exchange.status < HTTPStatus.BAD_REQUEST:
        return True
    refused = exchange.status >= HTTPStatus.BAD_REQUEST and exchange.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return refused and exchange.path in _ALWAYS


def told_by_guest(exchange: Exchange) -> bool:
    """Return whether an error comes from a guest that is alive and only reports a problem with a file or program.

    OSWorld's server answers 500 for any exception: "[Errno 2] No such file or directory: 'backup.sh'".
    """
    found = re.search(r"\[(Errno|WinError) (\d+)\]", exchange.body)
    if found is None or exchange.path not in _OF_FILES:
        return False
    return int(found[2]) in (_OF_ITS_OWN if found[1] == "Errno" else _OF_ITS_OWN_ON_WINDOWS)


class GuestHttp:
    """Stands for the module `requests`; every other name is that module's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(requests, name)

    def get(self, url: str, **kwargs: Any) -> requests.Response:
        return self._send("GET", url, kwargs)

    def post(self, url: str, data: Any = None, json: Any = None, **kwargs: Any) -> requests.Response:
        return self._send("POST", url, {"data": data, "json": json, **kwargs})

    def _send(self, method: str, url: str, kwargs: dict[str, Any]) -> requests.Response:
        kwargs.setdefault("timeout", DEFAULT_TIMEOUT_S)
        parts = urlsplit(url)
        # A caller that wants a stream, as for a download from the internet, reads it piece by piece.
        as_stream = kwargs.pop("stream", False)
        kwargs = marked(parts.path, kwargs)
        request = _digest(method, parts, kwargs)
        try:
            response = ask(method, url, **kwargs)
            if not as_stream:
                response = _read(response, MAX_ANSWER.get(parts.path, MAX_OTHER_ANSWER))
        except requests.RequestException as error:
            # `requests` raises a ConnectionError both for a pause in mid-answer and for a closed program.
            is_pause = any(isinstance(cause, ReadTimeoutError) for cause in error.args)
            words = f"{'ReadTimeout' if is_pause else type(error).__name__}: {error}"
            log.exchanges.append(Exchange(parts.netloc, parts.path, None, words, request=request))
            raise
        status: int | None = response.status_code
        problem = "" if as_stream or status != HTTPStatus.OK else _problem_of(parts.path, response.content)
        body = "" if as_stream or status == HTTPStatus.OK else response.text[:300]
        log.exchanges.append(Exchange(parts.netloc, parts.path, None if problem else status, problem, body, request))
        return response


def ask(method: str, url: str, **kwargs: Any) -> requests.Response:
    """Send a request as `requests.request` does, as a stream. It reaches a guest, whose host is always an address,
    directly: without the environment's proxies, without the user's `.netrc`, and without following redirections.
    """
    with requests.Session() as session:
        if _is_guest(urlsplit(url).hostname or ""):
            session.trust_env = False
            kwargs = {**kwargs, "allow_redirects": False}
        return session.request(method, url, stream=True, **kwargs)


def pass_on(server: str, request: GuestRequest, timeout_s: float) -> GuestAnswer:
    """Return a guest's answer to a request of a harness's program, within the limits of size.

    Args:
        server: `http://host:port`.

    Raises:
        requests.RequestException: no answer came.
    """
    headers = {"Content-Type": request.content_type}
    url, limit = server + request.path, MAX_ANSWER.get(request.path, MAX_OTHER_ANSWER)
    response = ask(request.method, url, data=request.body, headers=headers, timeout=timeout_s)
    answer = _read(response, limit)
    return GuestAnswer(answer.status_code, answer.headers.get("Content-Type", ""), answer.content)


def _is_guest(host: str) -> bool:
    """Return whether a URL's host is an address or this machine, unlike the internet hosts that tasks name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _digest(method: str, parts: SplitResult, kwargs: dict[str, Any]) -> str:
    data = kwargs.get("data")
    # An upload's form can be read only once, when it is sent; but its fields, with the file's path, are here.
    body = repr((getattr(data, "fields", data), kwargs.get("json"), kwargs.get("params")))
    return f"{method} {parts.path} {hashlib.sha256(f'{parts.query} {body}'.encode(errors='replace')).hexdigest()[:16]}"


def _read(response: requests.Response, limit: int) -> requests.Response:
    """Return the response with its content, or a response 413 if it is too large.

    Raises:
        requests.RequestException: the answer ends before its Content-Length, or cannot be decoded.
    """
    content = io.BytesIO()
    for chunk in response.iter_content(_CHUNK):
        content.write(chunk)
        log.received += len(chunk)
        if content.tell() > limit or log.received > MAX_ANSWERS:
            response.close()
            return _too_large(response, limit)
    response._content = content.getvalue()
    if _is_guest(urlsplit(response.url).hostname or ""):
        # We ignore the encoding that it declares: some of Python's codecs take hours over a megabyte, others raise.
        response.encoding = "utf-8"
    return response


def _too_large(response: requests.Response, limit: int) -> requests.Response:
    message = f"the guest's answer has more than {limit} bytes, or all since the last have more than {MAX_ANSWERS}"
    refusal = requests.Response()
    refusal.status_code, refusal.url = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, response.url
    refusal._content = json.dumps({"status": "error", "message": message, "error": message}).encode()
    return refusal


def _problem_of(path: str, content: bytes) -> str:
    """Return what is wrong with an answer in which the client expects JSON."""
    if path not in _JSON_FIELD:
        return ""
    try:
        value = json.loads(content)
    except ValueError as error:
        return f"no JSON: {error}"
    if not isinstance(value, dict) or _JSON_FIELD[path] not in value:
        return f"no {_JSON_FIELD[path]} in the answer {str(value)[:100]}"
    return ""
