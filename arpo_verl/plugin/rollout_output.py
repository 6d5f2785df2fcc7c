"""What the agent loop gives to veRL: its own output, and the episode's screenshots as a column of the row.

A column of its own, because who asks for `extra_fields` wants its few scalars: the sampler for every batch, veRL at
every validation. The row is made of `AgentLoopOutput.as_dict()`, which takes the fields of a subclass along
(veRL 0.9.1, `trainer/ppo/v1/agent_loop_tq.py: _agent_loop_postprocess`).
"""

from __future__ import annotations

from verl.experimental.agent_loop import AgentLoopOutput

SCREENSHOTS = "screenshots"
"""The column's name."""
FIRST_SCREENSHOT = "first_screenshot"
"""Name in `extra_fields`: the number of the first of its episode's screenshots that a row shows, where it is not 0."""


class GuiAgentOutput(AgentLoopOutput):
    """One row of an episode."""

    screenshots: list[bytes]
    """As the desktop sent them, in order; only those that no row before shows, so that each is kept once."""


def shows_from(number: int) -> dict[str, int]:
    """The extra field of a row whose first screenshot is the one of this number."""
    return {FIRST_SCREENSHOT: number} if number else {}
