"""`arpo-verl view RUN` shows a run, or a folder of runs, in a browser, also while it trains, or exports a run."""

from __future__ import annotations

import argparse
import errno
import math
import re
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import require

if TYPE_CHECKING:
    from arpo_verl.records.run import Run
    from arpo_verl.records.runs import RunsFolder

DEFAULT_PORT = 8642


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "view",
        description="Serves a page with the run's episodes, metrics and live desktops, or a list of a folder's runs. "
        "Only this machine can open it; "
        f"from another one, use ssh -L {DEFAULT_PORT}:localhost:{DEFAULT_PORT} THIS_MACHINE. Ctrl-C ends it.",
    )
    parser.add_argument(
        "path", type=Path, metavar="RUN", help="a recipe's run_dir, its trajectories folder, or a folder of runs"
    )
    serve = parser.add_argument_group("serving")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; any but loopback requires a token")
    serve.add_argument("--port", type=int, help=f"default {DEFAULT_PORT}, or the next free one; 0 takes any free one")
    serve.add_argument(
        "--token", action="store_true", help="require a token on loopback too, for a machine with other users"
    )
    export = parser.add_argument_group("exporting")
    export.add_argument("--export", type=Path, metavar="DIR", help="write a folder that opens without a server")
    export.add_argument("--steps", metavar="A-B", help="only these steps: 7, 3-10, 50- or -10")


def run(args: argparse.Namespace) -> int:
    shown = _open(args.path)
    if args.export is not None:
        return _export(shown, args)
    if args.steps is not None:
        raise ConfigError("--steps works only with --export; the page has its own filters, so leave it out")
    return _serve(shown, args)


def _open(path: Path) -> Run | RunsFolder:
    from arpo_verl.records.run import is_run, open_run
    from arpo_verl.records.runs import RunsFolder

    runs = RunsFolder(path)
    return open_run(path) if is_run(path) or not runs.names() else runs


def _export(opened: Run | RunsFolder, args: argparse.Namespace) -> int:
    from arpo_verl.records.run import Run
    from arpo_verl.tools.viewer.export import export_run

    if not isinstance(opened, Run):
        raise ConfigError(f"--export writes one run, but {args.path} has several; name one of them")
    first, last = (-math.inf, math.inf) if args.steps is None else _range(args.steps)
    snapshot = opened.select(lambda episode: first <= episode.step <= last)
    exported = export_run(opened, snapshot, args.export)
    print(f"{exported.episodes} episodes, {exported.size_bytes / 2**20:.1f} MiB of screenshots: open {exported.index}")
    return 0


def _range(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d+)|(\d*)-(\d*)", text)
    if match is None or text == "-":
        raise ConfigError(f"--steps must be a step or a range such as 7, 3-10, 50- or -10, got {text!r}")
    if match[1]:
        return int(match[1]), int(match[1])
    return int(match[2] or 0), float(match[3] or math.inf)


def _serve(opened: Run | RunsFolder, args: argparse.Namespace) -> int:
    from arpo_verl.records.runs import RunsFolder
    from arpo_verl.tools.viewer.access import is_loopback, new_token
    from arpo_verl.tools.viewer.server import build_server

    token = new_token() if args.token or not is_loopback(args.host) else None
    listener = _listen(args.host, args.port)
    port = listener.getsockname()[1]
    url = f"http://{_name_of(args.host)}:{port}/" + (f"?token={token}" if token else "")
    print(f"{opened.name}: {url}\nCtrl-C ends it.", flush=True)
    read = opened.names if isinstance(opened, RunsFolder) else opened.snapshot
    threading.Thread(target=read, daemon=True).start()  # reads in the background
    try:
        build_server(opened, token=token, port=port).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn ended properly, then raises the signal
    return 0


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket on that port; without one, on the default port or the next free one."""
    candidates = range(DEFAULT_PORT, DEFAULT_PORT + 50) if port is None else (port,)
    require(all(0 <= candidate < 65536 for candidate in candidates), "--port", "in [0, 65535]", port)
    for candidate in candidates:
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            failure = error
            if error.errno != errno.EADDRINUSE:
                break
    raise ConfigError(
        f"cannot listen on the port {candidate} of {host}: {failure}; leave out --port to use a free one, or name "
        "another address of this machine with --host"
    ) from failure


def _name_of(host: str) -> str:
    """Return a host's name for an address: the machine's name if the host means every interface."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
