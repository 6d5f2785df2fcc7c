"""Who may look: only this machine, or whoever has the token. ASGI middleware around everything that is served."""

from __future__ import annotations

import ipaddress
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
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


class AccessControl:
    """Lets a request through that may see the run, and sets the headers of every answer.

    Without a token, the server is on loopback, and the name in the Host header must be this machine's: another site
    whose name was made to resolve to 127.0.0.1 could else read the run through a visitor's browser.
    With one, each request must carry it, in its address once and in a cookie from then on.
    """

    def __init__(self, app: ASGIApp, token: str | None, port: int):
        self._app = app
        self._token = token
        # Cookies are a host's, whatever the port: two viewers on one host must not overwrite each other's.
        self._cookie = f"arpo_view_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        came_with_token = self._token is not None and self._is_token(self._query_token(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                if came_with_token:
                    headers.append("Set-Cookie", f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        refusal = self._refusal(scope, came_with_token)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, came_with_token: bool) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if self._token is None:
            name = _host_name(headers.get("host", ""))
            if is_loopback(name):
                return None
            return PlainTextResponse(
                f"This viewer answers to localhost only, not to {name!r}; --host opens it to others.\n",
                status_code=403,
            )
        if came_with_token or self._is_token(self._cookie_token(headers)):
            return None
        return PlainTextResponse(
            "Open the address that `arpo-verl view` printed, with its ?token=...\n", status_code=403
        )

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode(), (self._token or "").encode())

    def _query_token(self, scope: Scope) -> str:
        values = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        return values[0] if values else ""

    def _cookie_token(self, headers: Headers) -> str:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self._cookie].value if self._cookie in cookies else ""


def _host_name(host: str) -> str:
    """The Host header without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
