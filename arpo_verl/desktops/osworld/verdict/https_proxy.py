"""A sandbox's proxy for HTTPS leads to the internet hosts that a recipe allows, and nowhere else."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Collection
from urllib.parse import unquote, urlsplit

from arpo_verl.lib import relay
from arpo_verl.lib.relay import Streams

_HTTPS = 443


def to_hosts(hosts: Collection[str]) -> relay.Opener:
    """Answer an HTTP CONNECT by a connection to one of `hosts`, through this process's own proxy if it has one."""
    allowed = frozenset(host.lower() for host in hosts)

    async def open_host(sandbox: Streams) -> Streams:
        head = await sandbox[0].readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        host, _, port = words[1].rpartition(":") if len(words) == 3 and words[0] == "CONNECT" else ("", "", "")
        if host.lower() not in allowed or port != str(_HTTPS):
            sandbox[1].write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await sandbox[1].drain()
            raise PermissionError(f"an evaluator asked for {words[1:2]}, which is not in environment.evaluator_hosts")
        streams = await _connect_https(host)
        sandbox[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return streams

    return relay.answering(open_host)


async def _connect_https(host: str) -> Streams:
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(host):
        return await relay.connect(host, _HTTPS)
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    reader, writer = await relay.connect(parts.hostname or "", parts.port or 3128)
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    writer.write(f"CONNECT {host}:{_HTTPS} HTTP/1.1\r\nHost: {host}:{_HTTPS}\r\n{login}\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if answer.split()[1:2] != [b"200"]:
        writer.close()
        raise ConnectionRefusedError(f"the proxy {parts.hostname} does not lead to {host}")
    return reader, writer
