"""OSWorld's guest protocol for the desktops of running episodes, each behind its episode's token.

A program outside of this process has the address `http://desktop:TOKEN@127.0.0.1:PORT` of `HarnessServer`. OSWorld's
`PythonController` sends the token with each request, as any client does with a user in an address. What is no action
goes through where the recipe allows shell commands; screenshots always do. Whatever the desktop answers is handed on as
bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from arpo_verl.agent.actions.pyautogui_code import actions_alone
from arpo_verl.errors import ActionParseError, DesktopEndedError, DesktopError, HarnessError
from arpo_verl.lib.untrusted import parse_json
from arpo_verl.types import GuestAnswer, GuestRequest, Observation

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 1 << 20
"""Of code and commands, which are parsed here: nothing else of this process runs meanwhile."""
MOST_AT_ONCE = 8
"""Requests of one episode: each holds its body, up to `MOST_JSON_BYTES`, while it waits for its turn."""
REFUSED = 126
"""Exit status of a command that may not run, as a shell has it."""

_LOOKS = frozenset(
    {("GET", "/accessibility"), ("GET", "/platform"), ("GET", "/terminal"), ("POST", "/desktop_path")}
    | {("POST", "/screen_size"), ("POST", "/window_size"), ("POST", "/start_recording"), ("POST", "/end_recording")}
)
"""Change nothing of a task, and read no file."""
_PYTHON = frozenset({"python", "python3"})


class GuestDesktop(Protocol):
    """What a proxy needs of a leased desktop, see `DesktopEnvironment`."""

    async def look(self) -> Observation: ...
    async def ask(self, request: GuestRequest) -> GuestAnswer: ...


@dataclass
class _Episode:
    desktop: GuestDesktop
    allow_shell: bool
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One request at a time, as a desktop has it."""
    refusals: int = 0
    running: int = 0


class GuestProxy:
    """Answers for the desktops of this event loop's episodes."""

    def __init__(self) -> None:
        self._episodes: dict[str, _Episode] = {}

    @asynccontextmanager
    async def serving(self, token: str, desktop: GuestDesktop, allow_shell: bool) -> AsyncIterator[None]:
        """Serve `desktop` to those who have the token. The block ends when none of its requests is under way.

        Args:
            allow_shell: whether commands, scripts, files and set-up steps go through; else actions and looks alone.
        """
        episode = self._episodes[token] = _Episode(desktop, allow_shell)
        try:
            yield
        finally:
            del self._episodes[token]
            async with episode.turn:
                pass
            if episode.refusals:
                logger.info("%d requests that gui_agent.harness_shell=false does not allow", episode.refusals)

    async def answer(self, request: web.Request) -> web.Response:
        """Pass a request on to its episode's desktop."""
        episode = self._episodes.get(token := _token(request))
        if episode is None:
            return _refusal(HTTPStatus.UNAUTHORIZED, "this address must have the token of a running episode")
        if episode.running >= MOST_AT_ONCE:
            return _refusal(HTTPStatus.TOO_MANY_REQUESTS, f"an episode may make {MOST_AT_ONCE} requests at once")
        episode.running += 1
        # To its end, also where the program has gone: a desktop that is busy is none to evaluate.
        return await asyncio.shield(self._in_turn(token, episode, request))

    async def _in_turn(self, token: str, episode: _Episode, request: web.Request) -> web.Response:
        try:
            kind = request.headers.get("Content-Type", "")
            asked = GuestRequest(request.method, request.path, kind, await request.read())
            async with episode.turn:
                if self._episodes.get(token) is not episode:
                    return _refusal(HTTPStatus.UNAUTHORIZED, "the episode is over")
                return await _pass_on(episode, asked)
        except (DesktopError, DesktopEndedError, HarnessError) as error:  # the episode knows, and ends by it
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{type(error).__name__}: the episode is over")
        finally:
            episode.running -= 1


async def _pass_on(episode: _Episode, asked: GuestRequest) -> web.Response:
    place = asked.method, asked.path
    if place == ("GET", "/screenshot"):
        seen = await episode.desktop.look()
        return web.Response(body=seen.screenshot, content_type="image/png")
    if asked.path in ("/execute", "/run_python"):
        try:
            asked = _code_request(asked, episode.allow_shell)
        except ActionParseError as error:
            episode.refusals += 1
            return _not_run(asked.path, str(error))
    elif not episode.allow_shell and place not in _LOOKS:
        episode.refusals += 1
        return _refusal(HTTPStatus.FORBIDDEN, f"gui_agent.harness_shell=false does not allow {asked.path}")
    answer = await episode.desktop.ask(asked)
    return web.Response(
        body=answer.body, status=answer.status, headers={"Content-Type": _printable_header(answer.content_type)}
    )


def _code_request(asked: GuestRequest, allow_shell: bool) -> GuestRequest:
    """The request to run something, with the fields that the protocol has and no other.

    Raises:
        ActionParseError: it is none, or more than actions where these alone are allowed.
    """
    if len(asked.body) > MAX_CODE_BYTES:
        raise ActionParseError(f"the request must have at most {MAX_CODE_BYTES} bytes, got {len(asked.body)}")
    try:
        said = parse_json(asked.body)
    except ValueError as error:
        raise ActionParseError(f"the request must be JSON: {error}") from error
    if not isinstance(said, dict):
        raise ActionParseError("the request must be a JSON object")
    if asked.path == "/run_python":
        code = said.get("code")
        kept: Mapping[str, Any] = {"code": code if allow_shell else actions_alone(_text(code))}
    else:
        command, shell = said.get("command"), said.get("shell", False)
        kept = {"command": command if allow_shell else _action_command(command, shell), "shell": shell}
    return GuestRequest("POST", asked.path, "application/json", json.dumps(kept).encode())


def _action_command(command: object, shell: object) -> list[str]:
    match command:
        case [str() as program, "-c", str() as code] if program in _PYTHON and not shell:
            return [program, "-c", actions_alone(code)]
    raise ActionParseError("gui_agent.harness_shell=false allows pyautogui's actions alone, as python -c CODE")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ActionParseError("the code must be a text")
    return value


def _token(request: web.Request) -> str:
    """What the program has in its address, as user or as password; "" for none."""
    try:
        login = aiohttp.BasicAuth.decode(request.headers.get("Authorization", ""))
    except ValueError:
        return ""
    return str(login.password or login.login)


def _not_run(path: str, message: str) -> web.Response:
    """As a guest answers for a command that failed: OSWorld's client would send anything but a 200 again."""
    answer = {"status": "error", "message": message, "output": "", "error": message}
    code = {"return_code": REFUSED, "need_more": False} if path == "/run_python" else {"returncode": REFUSED}
    return web.json_response({**answer, **code})


def _refusal(status: HTTPStatus, message: str) -> web.Response:
    return web.json_response({"status": "error", "message": message, "error": message}, status=status)


def _printable_header(value: str) -> str:
    """A desktop's word for what it sends, which may hold anything."""
    return value[:100] if value.isascii() and value.isprintable() and value else "application/octet-stream"
