"""A Docker engine's REST interface on a Unix socket, which starts an embedded desktop where a container would start.

Only the outermost boundary is faked: the `docker` package and OSWorld's Docker provider talk to it as they are. What it
does not know it answers with 501 and keeps in `unknown`, for the test to look at.
"""

from __future__ import annotations

import json
import re
import socketserver
import threading
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.types import Size
from support.port_forward import PortForward

IMAGE = "happysixd/osworld-docker"


class Refusal(Exception):
    """An error reply, in the engine's words."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Container:
    """One desktop with published ports. As in Docker, starting it does not wait until its guest is up."""

    def __init__(self, options: dict[str, Any], size: Size, boots: bool):
        self.id = uuid.uuid4().hex * 2
        self.options = options
        self.status = "created"
        self.exit_code = 0
        self.events: list[str] = []
        self.log = "the container's last words"
        self.bindings = options.get("HostConfig", {}).get("PortBindings") or {}
        self._boots = boots
        self._provider = EmbeddedProvider(size)
        self._changing = threading.Lock()
        self._forwards: dict[int, PortForward] = {}

    def start(self) -> None:
        try:
            for guest, hosts in self.bindings.items():
                port = int(hosts[0]["HostPort"])
                self._forwards[int(guest.split("/")[0])] = PortForward(("127.0.0.1", port))
        except OSError as error:
            self._close_ports()
            raise Refusal(500, f"driver failed programming external connectivity: {error}") from error
        self.status = "running"
        if self._boots:
            threading.Thread(target=self._boot, daemon=True).start()

    def stop(self) -> None:
        self.status, self.exit_code, self.events = "exited", 137, ["kill", "die"]
        with self._changing:
            self._close_ports()
            self._provider.stop_emulator()

    def power_off(self) -> None:
        """Its machine ends by itself."""
        self.stop()
        self.exit_code, self.events = 0, ["die"]

    def inspect(self) -> dict[str, Any]:
        running = self.status == "running"
        return {
            "Id": self.id,
            "Name": f"/{self.id[:12]}",
            "Image": f"sha256:{'0' * 64}",
            "State": {"Status": self.status, "Running": running, "ExitCode": self.exit_code},
            "Config": {key: value for key, value in self.options.items() if key != "HostConfig"},
            "HostConfig": self.options.get("HostConfig", {}),
            "NetworkSettings": {"Ports": self.bindings if running else {}},
        }

    def _boot(self) -> None:
        with self._changing:
            if self.status != "running":
                return
            self._provider.start_emulator()
            _, server, chromium, _, vlc = self._provider.get_ip_address().split(":")
            for guest, port in {5000: server, 9222: chromium, 8080: vlc}.items():
                if guest in self._forwards:
                    self._forwards[guest].target = int(port)

    def _close_ports(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        self._forwards = {}


class FakeDocker:
    """The engine. `containers` are those that `docker ps --all` would list; `requests` is all that was asked of it."""

    def __init__(self, folder: Path, size: Size = Size(1920, 1080), images: tuple[str, ...] = (IMAGE,)):  # noqa: B008
        self.host = f"unix://{folder / 'docker.sock'}"
        self.containers: dict[str, Container] = {}
        self.created: list[dict[str, Any]] = []
        self.images = set(images)
        """By name, the labels."""
        self.networks: list[dict[str, Any]] = []
        self.commands: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.stop_fails = False
        self.stop_timeouts: list[str | None] = []
        self.guests_boot = True
        self._size = size
        self._server = _UnixServer(str(folder / "docker.sock"), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for container in self.containers.values():
            container.stop()

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """The engine's reply to one request: status, and JSON or None."""
        for (wanted, pattern), action in self._routes().items():
            found = re.fullmatch(r"(?:/v[\d.]+)?" + pattern, path)
            if method == wanted and found:
                return action(*found.groups(), query, body)
        self.unknown.append(f"{method} {path}")
        raise Refusal(501, f"this engine has no {method} {path}")

    def _routes(self) -> dict[tuple[str, str], Any]:
        one = r"/containers/(\w+)"
        return {
            ("GET", "/version"): lambda *_: (200, {"ApiVersion": "1.47", "MinAPIVersion": "1.24", "Version": "27.0"}),
            ("GET", "/_ping"): lambda *_: (200, "OK"),
            ("GET", r"/images/(.+)/json"): self._image,
            ("POST", "/images/create"): self._pull,
            ("GET", "/containers/json"): self._list,
            ("GET", "/events"): self._events,
            ("POST", "/containers/create"): self._create,
            ("GET", one + "/json"): lambda key, *_: (200, self._find(key).inspect()),
            ("GET", one + "/logs"): lambda key, *_: (200, self._find(key).log),
            ("POST", one + "/start"): lambda key, *_: (204, self._find(key).start()),
            ("POST", one + "/stop"): self._stop,
            ("DELETE", one): self._remove,
            ("POST", one + "/exec"): self._exec,
            ("POST", r"/exec/(\w+)/start"): lambda *_: (200, None),
            ("GET", r"/exec/(\w+)/json"): lambda *_: (200, {"Running": False, "ExitCode": 0}),
            ("GET", "/networks"): lambda *_: (200, self.networks),
            ("POST", "/networks/create"): self._create_network,
        }

    def _image(self, name: str, *_: Any) -> tuple[int, Any]:
        name = name.removesuffix(":latest")
        if name not in self.images:
            raise Refusal(404, f"No such image: {name}:latest")
        return 200, {"Id": f"sha256:{'0' * 64}", "RepoTags": [f"{name}:latest"]}

    def _pull(self, query: dict[str, str], _: Any) -> tuple[int, Any]:
        self.images.add(query["fromImage"])
        return 200, {"status": "Download complete"}

    def _list(self, query: dict[str, str], _: Any) -> tuple[int, Any]:
        labels = json.loads(query.get("filters", "{}")).get("label", [])
        every = query.get("all") in ("1", "true", "True")
        shown = [c for c in list(self.containers.values()) if every or c.status == "running"]
        return 200, [{"Id": c.id, "Labels": c.options.get("Labels") or {}} for c in shown if _has(c, labels)]

    def _events(self, query: dict[str, str], _: Any) -> tuple[int, Any]:
        (key,) = json.loads(query["filters"])["container"]
        return 200, b"".join(json.dumps({"Action": event}).encode() for event in self._find(key).events)

    def _create(self, _: Any, body: dict[str, Any]) -> tuple[int, Any]:
        if body["Image"] not in self.images:
            raise Refusal(404, f"No such image: {body['Image']}:latest")
        container = Container(body, self._size, self.guests_boot)
        self.created.append(body)
        self.containers[container.id] = container
        return 201, {"Id": container.id, "Warnings": []}

    def _exec(self, key: str, _: Any, body: dict[str, Any]) -> tuple[int, Any]:
        self.commands.append(body)
        return 201, {"Id": self._find(key).id}

    def _create_network(self, _: Any, body: dict[str, Any]) -> tuple[int, Any]:
        self.networks.append(body)
        return 201, {"Id": "0" * 64, "Warning": ""}

    def _stop(self, key: str, query: dict[str, str], _: Any) -> tuple[int, Any]:
        self.stop_timeouts.append(query.get("t"))
        if self.stop_fails:
            raise Refusal(500, "cannot stop container: tried to kill container, but did not receive an exit event")
        container = self._find(key)
        if container.status != "running":
            return 304, None
        container.stop()
        return 204, None

    def _remove(self, key: str, query: dict[str, str], _: Any) -> tuple[int, Any]:
        container = self._find(key)
        if container.status == "running":
            if query.get("force") not in ("1", "true", "True"):
                raise Refusal(409, "cannot remove container: container is running: stop the container before removing")
            container.stop()
        self.containers.pop(key, None)
        return 204, None

    def _find(self, key: str) -> Container:
        if key not in self.containers:
            raise Refusal(404, f"No such container: {key}")
        return self.containers[key]


def _has(container: Container, labels: list[str]) -> bool:
    return _fits(container.options.get("Labels") or {}, labels)


def _fits(given: dict[str, str], labels: list[str]) -> bool:
    wanted = [label.partition("=") for label in labels]
    return all(key in given and (not equals or given[key] == value) for key, equals, value in wanted)


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def _handler(engine: FakeDocker) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            engine.requests.append(f"{self.command} {parts.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            try:
                status, reply = engine.answer(self.command, parts.path, query, json.loads(body or "{}"))
            except Refusal as refusal:
                status, reply = refusal.status, {"message": str(refusal)}
            content = reply if isinstance(reply, bytes) else b"" if reply is None else json.dumps(reply).encode()
            self._send(status, content)
            self.close_connection |= "/exec/" in parts.path  # a command's output lasts until then

        do_POST = do_DELETE = do_GET

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
