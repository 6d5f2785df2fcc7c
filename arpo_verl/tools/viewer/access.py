"""ASGI middleware that lets only this machine, or those with the token, see a run."""

from __future__ import annotations

import ipaddress
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    # No inline script or style, nothing from other hosts: even if a model's text became markup, it would not run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def new_token() -> str:
    """Return a secret of 192 bits, for one server."""
    return secrets.token_urlsafe(24)


class AccessControl:
    """Lets requests through that may see the run, and sets the headers of every answer.

    Without a token, the server is on loopback, and the Host header must name this machine. Otherwise a site whose name
    resolves to 127.0.0.1 could read the run through a visitor's browser.
    With a token, each request must have it: in its address once, and then in a cookie. The first answer is the page and
    not a redirection: a browser that follows another site's link would send no SameSite=Strict cookie with that.
    """

    def __init__(self, app: ASGIApp, token: str | None, port: int):
        self._app = app
        self._token = token
        # Cookies belong to a host with all its ports: two viewers on one host must not overwrite each other's.
        self._cookie = f"arpo_view_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        came_with_token = self._is_token(request.query_params.get("token", ""))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                # Otherwise browsers keep the page's files for a guessed time, even after an upgrade.
                headers.setdefault("Cache-Control", "private, no-cache")
                if came_with_token:
                    headers.append("Set-Cookie", f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        has_token = came_with_token or self._is_token(request.cookies.get(self._cookie, ""))
        refusal = self._check_host(request) if self._token is None else self._check_token(has_token)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _is_token(self, value: str) -> bool:
        return self._token is not None and secrets.compare_digest(value.encode(), self._token.encode())

    def _check_token(self, has_token: bool) -> PlainTextResponse | None:
        message = "Open the address that `arpo-verl view` printed, with its ?token=...\n"
        return None if has_token else PlainTextResponse(message, status_code=403)

    def _check_host(self, request: Request) -> PlainTextResponse | None:
        name = _host_name(request.headers.get("host", ""))
        message = f"This viewer answers only to localhost, not to {name!r}; use --host to open it to others.\n"
        return None if is_loopback(name) else PlainTextResponse(message, status_code=403)


def _host_name(host: str) -> str:
    """Return the Host header without its port (a forwarded port differs), and without IPv6 brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
