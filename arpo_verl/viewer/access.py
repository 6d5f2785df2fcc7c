"""Who may look: only this machine, or those who have the token. ASGI middleware around everything that is served."""

from __future__ import annotations

import ipaddress
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    # No inline script or style, nothing from elsewhere: text of a model that became markup would still not run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a server bound to this host is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def new_token() -> str:
    """A secret of 192 bits, for one server."""
    return secrets.token_urlsafe(24)


class AccessControl:
    """Lets a request through that may see the run, and sets the headers of every answer.

    Without a token, the server is on loopback, and the name in the Host header must be this machine's: another site
    whose name was made to resolve to 127.0.0.1 could else read the run through a visitor's browser.
    With one, each request must carry it, in its address once and in a cookie from then on. The first answer is the page
    itself and no redirect: a browser that came by another site's link would not send a SameSite=Strict cookie with it.
    """

    def __init__(self, app: ASGIApp, token: str | None, port: int):
        self._app = app
        self._token = token
        # Cookies are a host's, whatever the port: two viewers on one host must not overwrite each other's.
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
                # Browsers else keep the page's files for a guessed time, past an upgrade.
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
        message = f"This viewer answers to localhost only, not to {name!r}; --host opens it to others.\n"
        return None if is_loopback(name) else PlainTextResponse(message, status_code=403)


def _host_name(host: str) -> str:
    """The Host header without its port, whatever it is: a forwarded one differs. IPv6 without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
