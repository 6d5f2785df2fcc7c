"""The sandbox host's only process imports OSWorld's client, and forks a sandbox for each evaluation.

Each request (`desktops/embedded/guest/fork_server.py`) brings the descriptor of the sandbox's channel. It never reads a
desktop's data.
"""

from __future__ import annotations

from arpo_verl.desktops.embedded.guest import fork_server
from arpo_verl.desktops.embedded.guest.namespaces import end_with_parent
from arpo_verl.desktops.osworld.verdict import sandbox, sandbox_limits


def main(control_fd: int) -> None:
    """Serve until the worker is gone."""
    end_with_parent()
    sandbox.warm_up()
    fork_server.serve(control_fd, _become_sandbox)


def _become_sandbox(descriptors: list[int]) -> None:
    (channel,) = descriptors
    sandbox_limits.close_descriptors({channel})
    sandbox.main(channel)
