"""`python -m arpo_verl.environments.osworld.docker_reaper OWNER`: removes the containers of a process that has
ended.

Started by the process that owns them, with a pipe as standard input: the kernel closes the other end when the owner
dies, whatever killed it. Nothing heavy is imported before.
"""

from __future__ import annotations

import os
import signal
import sys
import time

ATTEMPTS = 5
PAUSE_S = 2.0
"""Between attempts: an engine that is busy with what else died may not answer at once."""


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

    from arpo_verl.environments.osworld.docker_containers import remove_of_owner

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return remove_of_owner(owner)
        except DockerException as error:
            if attempt == ATTEMPTS:
                print(f"the containers of {owner} could not be removed: {error}", file=sys.stderr)
            else:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1])
