"""`python -m arpo_verl.desktops.osworld.docker_reaper OWNER` removes the containers of a process that has ended.

The owner starts it, with a pipe as standard input. The kernel closes the other end when the owner dies, whatever
killed it. Before that, the reaper imports nothing heavy.
"""

from __future__ import annotations

import os
import signal
import sys
import time

PAUSE_S = 3.0
"""The pause between looks: a busy engine may not answer at once."""
QUIET_LOOKS = 2
"""Looks in a row that must find nothing: the engine may still be making the owner's last container."""
PATIENCE_S = 120.0
"""An engine takes up to a minute to restart. After two the reaper gives up; the host's next owner removes the rest."""


def main(owner: str) -> None:
    """Wait for the owner's end in a process that is nobody's child, then remove its containers."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the owner
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    _remove(owner)


def _remove(owner: str) -> None:
    from docker.errors import DockerException
    from requests import RequestException

    from arpo_verl.desktops.osworld.docker_containers import remove_of_owner

    deadline, quiet, problem = time.monotonic() + PATIENCE_S, 0, "they come back, or cannot be removed"
    while time.monotonic() < deadline:
        try:
            quiet = quiet + 1 if remove_of_owner(owner) == 0 else 0
        except (DockerException, RequestException) as error:
            quiet, problem = 0, str(error)
        if quiet == QUIET_LOOKS:
            return
        time.sleep(PAUSE_S)
    print(f"containers of {owner} may be left: {problem}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
