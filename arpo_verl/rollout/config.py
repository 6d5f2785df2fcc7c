"""The recipe's section `gui_agent:`, validated before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from arpo_verl.config import Problems, check_fields, number, one_of, require, text, truth, whole
from arpo_verl.errors import ConfigError
from arpo_verl.models.family import CONTEXTS, FULL, SEGMENTS, WINDOW, ModelFamily, load_family

ALL, FAILURES_AND_REPLAYS, NONE = RECORDS = ("all", "failures_and_replays", "none")

_SEGMENT_SCREENSHOTS = 10
HARNESS_WORDS = ("endpoint", "token", "desktop", "instruction", "task_id")
HARNESS_ENV = {
    "OPENAI_BASE_URL": "{endpoint}",
    "OPENAI_API_KEY": "{token}",
    "DESKTOP_URL": "{desktop}",
    "INSTRUCTION": "{instruction}",
}


@dataclass(frozen=True)
class GuiAgentConfig:
    """How long an episode may be, what the model is told, and whether episodes are recorded.

    The model sees its history in one or several rows of tokens (see docs/context.md). A row's length is bounded by
    veRL's own `rollout.prompt_length` (of the first: prompt and first screenshot) and `rollout.response_length`; see
    `check_lengths`.
    """

    max_steps: Annotated[int, whole(1)] = 15
    """Replies of the model in one episode; the paper's limit. Several actions in one reply are one turn."""
    context: Annotated[str | None, one_of(CONTEXTS)] = None
    """What of its history the model sees; null: what is usual for its family. `full`: all of it, one row an episode,
    which ends when there is no room for more; the paper. `window`: the last `max_screenshots`, and the replies before
    them as text in the form of the model's official runner; beyond the window each turn is a row of its own.
    `segments`: a row grows to `max_screenshots`, or to the token limits, then another begins with the last
    `kept_screenshots`, and the replies before them as text: fewer rows, and the engine's prefix cache holds within one.
    Where replies leave a new row no room for so many screenshots, it shows fewer, the newest at least."""
    max_screenshots: int | None = None
    """Screenshots in one row, the first included. In `full` the episode stops when it would need one more. None: in
    `full` `max_steps`, since one reply follows each; in `window` as many as the official runner shows (of UI-TARS and
    Qwen 5, the newest and four before it); in `segments` 10."""
    kept_screenshots: Annotated[int | None, whole(1, "a whole number from 1, or null")] = None
    """In `segments`, with how many of the last screenshots a row begins, the newest included. None: half of
    `max_screenshots`, rounded up."""
    max_reply_tokens: Annotated[int, whole(1)] = 512
    """Tokens of one reply. A reply that has not ended by then is malformed. UI-TARS-1.5 writes 50 to 300."""
    between_actions_s: Annotated[float, number(lambda x: x >= 0, "0 or more seconds")] = 1.0
    """Seconds between the look after an action and the next action of the same reply: without them two clicks are a
    double click. OSWorld's parser of UI-TARS rests so long between the actions of a reply
    (`parsing_response_to_pyautogui_code` in mm_agents/uitars15_v1.py). 0 where `environment.action_pause_s` is a second
    or more and that shall be all."""
    engine_timeout_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 600.0
    """Seconds after which a rollout engine counts as hung, if it answers none of its requests while the trainer waits
    for episodes. Its requests then go to the other engines, and the run ends behind the step. The default leaves
    `max_reply_tokens` at a token a second with some room. Raise it for slower engines and longer replies."""
    model_family: Annotated[str, text("a name")] = "ui_tars_15"
    """What the model is asked and how it answers: one of `arpo_verl.models.family.SHIPPED`, or `package.module:NAME`, a
    `ModelFamily` of yours. It must be the one that the model was trained for."""
    language: Annotated[str, text("a name")] = "English"
    """Of the thoughts. UI-TARS alone is asked for one."""
    harness: str | list[str] | None = None
    """Who plays an episode; see docs/harness.md. null: our own loop. `package.module:function`: an async function of
    yours, which runs in the rollout worker: code that you trust. A command, as text with spaces or as a list: a program
    of its own, as an unprivileged user. With a harness `max_screenshots` bounds the images of one request."""
    harness_env: dict[str, str] = field(default_factory=lambda: dict(HARNESS_ENV))
    """Environment of the command: a variable for each name. In a value {endpoint} is the address that answers as
    OpenAI's API, {token} its key, {desktop} the desktop's address, {instruction} and {task_id} the task's."""
    harness_timeout_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 600.0
    """Seconds of its own that a harness has for an episode; its waits for the engine and the desktop do not count. The
    default leaves 15 turns 40 s each."""
    harness_memory_mb: Annotated[int, whole(64, "a whole number of megabytes from 64")] = 2048
    """Memory of the command, with the files that it writes. A Python with an agent's libraries takes some 300 MB."""
    harness_shell: Annotated[bool, truth()] = False
    """Whether the command may run shell commands on its desktop, and read and write files there; without, it acts by
    pyautogui alone, as our loop does."""
    harness_network: Annotated[bool, truth()] = False
    """Whether the command reaches all that the rollout worker reaches, for a program that asks other servers; without,
    its endpoint and its desktop alone."""
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
        problems = Problems()
        with problems.gather():
            check_fields(self, "gui_agent")
        with problems.gather():
            few = self.max_screenshots
            require(few is None or whole(1).holds(few), "gui_agent.max_screenshots", "from 1", few)
        with problems.gather():
            load_family(str(self.model_family))
        with problems.gather():
            self._check_harness()
        problems.raise_all()
        object.__setattr__(self, "context", self.context or self.family.context)
        for check in (self._check_screenshots, self._check_kept, self._check_language):
            with problems.gather():
                check()
        problems.raise_all()

    def _check_screenshots(self) -> None:
        if self.context != FULL or self.harness is not None or self.max_screenshots is None:
            return
        require(
            self.max_screenshots <= self.max_steps,
            "gui_agent.max_screenshots",
            f"from 1 to gui_agent.max_steps ({self.max_steps}), since each is followed by one reply",
            self.max_screenshots,
            "set it to null to take max_steps, or gui_agent.context to window or segments for longer episodes",
        )

    def _check_harness(self) -> None:
        words = [self.harness] if isinstance(self.harness, str) else list(self.harness or ())
        require(
            self.harness is None or (bool(words) and all(isinstance(word, str) and word for word in words)),
            "gui_agent.harness",
            "null, package.module:function, or a command as text with spaces or as a list",
            self.harness,
        )
        for name, value in self.harness_env.items():
            try:
                value.format_map(dict.fromkeys(HARNESS_WORDS, ""))
            except (AttributeError, LookupError, ValueError) as error:
                expected = "text with no braces but " + ", ".join(f"{{{word}}}" for word in HARNESS_WORDS)
                raise ConfigError(f"gui_agent.harness_env.{name} must be {expected}, got {value!r}") from error

    def _check_kept(self) -> None:
        require(
            self.kept_screenshots is None
            or (self.context == SEGMENTS and self.kept_screenshots < self.row_screenshots),
            "gui_agent.kept_screenshots",
            f"less than gui_agent.max_screenshots ({self.row_screenshots}), and null but with context={SEGMENTS}",
            self.kept_screenshots,
        )

    def _check_language(self) -> None:
        if not self.family.asks_language:
            expected = f"English with gui_agent.model_family={self.model_family}, whose words ask for no language"
            require(self.language == "English", "gui_agent.language", expected, self.language)

    @property
    def family(self) -> ModelFamily:
        """The model's."""
        return load_family(self.model_family)

    @property
    def recorded_in(self) -> str | None:
        """The folder of the records; None where there are none."""
        return None if self.record == NONE else self.trajectory_dir

    @property
    def max_turns(self) -> int:
        """Replies that `max_steps` and the limit of screenshots allow together."""
        return self.row_screenshots if self.context == FULL and self.harness is None else self.max_steps

    @property
    def row_screenshots(self) -> int:
        """Most screenshots in one row; of a harness, in one request."""
        if self.harness is not None:
            return self.max_screenshots or self.max_steps
        usual = {FULL: self.max_steps, WINDOW: self.family.window, SEGMENTS: _SEGMENT_SCREENSHOTS}
        return usual[str(self.context)] if self.max_screenshots is None else self.max_screenshots

    @property
    def max_rows(self) -> int:
        """Rows of an episode that takes all its turns, where no row ends before by the token limits. A harness may
        begin one with each reply."""
        if self.harness is not None:
            return self.max_steps
        kept = self.screenshots_kept
        beyond = 0 if kept is None else max(0, self.max_steps - self.row_screenshots)
        return 1 + math.ceil(beyond / (self.row_screenshots - (kept or 0) + 1))

    @property
    def screenshots_kept(self) -> int | None:
        """With how many of the last screenshots another row begins where one is full; None: none does."""
        if self.context == FULL:
            return None
        half = (self.row_screenshots + 1) // 2
        return self.row_screenshots if self.context == WINDOW else self.kept_screenshots or half


def check_lengths(config: GuiAgentConfig, response_length: int, screenshot_tokens: int) -> None:
    """Refuse token limits under which no episode could have a second turn.

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
