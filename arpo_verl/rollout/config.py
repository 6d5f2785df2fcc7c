"""The recipe's section `gui_agent:`, validated before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.config import check_fields, number, one_of, require, text, whole
from arpo_verl.rollout.prompts import PROMPT_GRAMMARS

ALL, FAILURES_AND_REPLAYS, NONE = RECORDS = ("all", "failures_and_replays", "none")


@dataclass(frozen=True)
class GuiAgentConfig:
    """How long an episode may be, what the model is told, and whether episodes are recorded.

    The history is one sequence, so its length is bounded by veRL's own `rollout.prompt_length` (prompt and first
    screenshot) and `rollout.response_length` (everything after); see `check_lengths`.
    """

    max_steps: Annotated[int, whole(1)] = 15
    """Replies of the model in one episode; the paper's limit. Several actions in one reply are one step."""
    max_screenshots: int | None = 15
    """Screenshots that the model is shown, the first included; the episode stops when it would need one more, since
    the history is one sequence and no screenshot leaves it. One reply follows each, so more than `max_steps` cannot
    be used. None: `max_steps`."""
    max_reply_tokens: Annotated[int, whole(1)] = 512
    """Tokens of one reply. A reply that has not ended by then is malformed. UI-TARS-1.5 writes 50 to 300."""
    prompt: Annotated[str, one_of(PROMPT_GRAMMARS)] = "ui_tars_15"
    """`ui_tars_15`: what UI-TARS-1.5 was trained with, 330 tokens beside the task's. `qwen25_vl`, `qwen3_vl`: the
    `computer_use` tool of these models, 380 and 990. These three are the official words and come from the package
    `desktop-env`; see `official_words`. `compact`: ours, one sentence of 20 tokens, for a small policy that learned the
    action space by imitation and pays for each prompt token."""
    grammar: Annotated[str, one_of(GRAMMARS)] = "ui_tars"
    """How the model writes its actions. `ui_tars`: `Action: click(...)`; `qwen25_vl`: the `computer_use` tool call in
    pixels of the resized screenshot; `qwen3_vl`: the same in thousandths. It must be the one that `prompt` asks for."""
    language: Annotated[str, text("a name")] = "English"
    """Of the thoughts. `ui_tars_15` alone asks for one."""
    trajectory_dir: Annotated[str | None, text("a folder or null")] = None
    """Where each episode is written with its screenshots; None records nothing. See docs/trajectories.md."""
    record: Annotated[str, one_of(RECORDS)] = ALL
    """Which episodes keep their screenshots, which are nearly all of a record's bytes. `all`. `failures_and_replays`:
    a full success keeps its text and numbers alone, and gets its screenshots back when it is replayed; a good policy's
    successes are many and alike. `none`: nothing is written."""
    record_share: Annotated[float, number(lambda x: 0 <= x <= 1, "in [0, 1]")] = 1.0
    """Share of the groups that are recorded: whole groups, so that failures can be compared with successes, drawn by
    their uid, so that every worker draws alike. 1 is all; 0 is none, but for `groups.jsonl`."""
    trajectory_budget_bytes: Annotated[int | None, whole(1, "a whole number of bytes from 1, or null")] = 20 * 1024**3
    """Bytes of all records together; None has no bound. Over it, the screenshots of the oldest training steps are
    removed, then those of the oldest validations; texts and numbers stay, and so does the running step. 20 GiB hold
    some 6,000 episodes of 15 screenshots of 0.24 MB (1080p PNG, plain background)."""

    def __post_init__(self) -> None:
        check_fields(self, "gui_agent")
        if self.max_screenshots is not None:
            require(
                whole(1).holds(self.max_screenshots) and self.max_screenshots <= self.max_steps,
                "gui_agent.max_screenshots",
                f"from 1 to gui_agent.max_steps ({self.max_steps}), since each is followed by one reply",
                self.max_screenshots,
                "set it to null to take max_steps",
            )
        if self.prompt != "ui_tars_15":
            expected = f"English with gui_agent.prompt={self.prompt}, whose words ask for no language"
            require(self.language == "English", "gui_agent.language", expected, self.language)
        fitting = PROMPT_GRAMMARS[self.prompt]
        expected = f"{' or '.join(fitting)}, which gui_agent.prompt={self.prompt} asks the model for"
        require(self.grammar in fitting, "gui_agent.grammar", expected, self.grammar)

    @property
    def recorded_in(self) -> str | None:
        """The folder of the records; None where there are none."""
        return None if self.record == NONE else self.trajectory_dir

    @property
    def max_turns(self) -> int:
        """Replies that the step and screenshot limits allow together."""
        return self.max_steps if self.max_screenshots is None else self.max_screenshots


def check_lengths(config: GuiAgentConfig, response_length: int, screenshot_tokens: int) -> None:
    """Refuse token limits under which no episode could take a second step.

    Args:
        response_length: `actor_rollout_ref.rollout.response_length`: every reply, and every screenshot but the first.
        screenshot_tokens: visual tokens of one screenshot (`ImageGeometry.num_tokens`).

    Raises:
        ConfigError: they cannot work.
    """
    needed = config.max_reply_tokens
    what = f"gui_agent.max_reply_tokens ({config.max_reply_tokens})"
    if config.max_turns > 1:
        needed += screenshot_tokens
        what += f" and a screenshot's {screenshot_tokens} tokens"
    require(
        response_length >= needed,
        "actor_rollout_ref.rollout.response_length",
        f"at least {needed}: {what}",
        response_length,
        "raise data.max_response_length, or lower gui_agent.max_reply_tokens or the processor's max_pixels",
    )
