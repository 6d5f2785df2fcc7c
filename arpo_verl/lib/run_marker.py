"""Say whether this process belongs to a run of ours: only there may we change what veRL and vLLM do.

Both load our plugins in each of their processes, also for somebody who only has arpo_verl installed. The recipe `arpo`
gives the marker to all processes of a run, through veRL's `ray_kwargs.ray_init.runtime_env`.
"""

import os

MARKER = {"ARPO_VERL_RUN": "1"}
"""What such a process has in its environment."""


def is_our_run() -> bool:
    """Return whether this process has the marker."""
    return all(os.environ.get(name) == value for name, value in MARKER.items())
