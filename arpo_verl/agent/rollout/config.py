"""Define the recipe's section `gui_agent:` and check it before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from arpo_verl.agent.models.family import CONTEXTS, FULL, SEGMENTS, WINDOW, ModelFamily, load_family
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems, check_fields, number, one_of, require, text, truth, whole

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
    """Sets how long an episode may be, what the prompt says, and which episodes are recorded.

    The model sees its history in one or several rows of tokens (see docs/context.md). Two of veRL's options limit a
    row: `rollout.prompt_length` (the prompt and first screenshot of the first row) and `rollout.response_length`; see
    `check_lengths`.
    """

    max_steps: Annotated[int, whole(1)] = 15
    """Most replies of the model in one episode. 15 is the paper's limit. A reply with several actions is one turn."""
    context: Annotated[str | None, one_of(CONTEXTS)] = None
    """What the model sees of its history; null: what its family usually sees. `full`: everything, in one row, as in the
    paper; the episode ends when the row is full. `window`: the last `max_screenshots`, and earlier replies as text, as
    the model's official runner writes them; once the window is full, each turn is a row of its own. `segments`: a row
    grows to `max_screenshots` or to the token limits; the next begins with the last `kept_screenshots`, and earlier
    replies as text. This gives fewer rows, and the engine's prefix cache works within each. If the replies leave too
    little room in a new row, it shows fewer screenshots, but at least the newest."""
    max_screenshots: int | None = None
    """Most screenshots in one row, the first included. In `full` the episode ends when it would need one more. None: in
    `full` as many as `max_steps`, since one reply follows each; in `window` as many as the official runner shows (5 for
    UI-TARS and Qwen: the newest and four before it); in `segments` 10."""
    kept_screenshots: Annotated[int | None, whole(1, "a whole number from 1, or null")] = None
    """How many of the last screenshots a new row begins with in `segments`, the newest included. None: half of
    `max_screenshots`, rounded up."""
    max_reply_tokens: Annotated[int, whole(1)] = 512
    """Most tokens of one reply. A longer reply counts as malformed. UI-TARS-1.5 writes 50 to 300."""
    between_actions_s: Annotated[float, number(lambda x: x >= 0, "0 or more seconds")] = 1.0
    """Seconds to wait between two actions of one reply, counted from the screenshot after the first. Without a pause
    two clicks become a double click. The default is the pause of OSWorld's parser for UI-TARS
    (`parsing_response_to_pyautogui_code` in mm_agents/uitars15_v1.py). Set 0 if `environment.action_pause_s` is a
    second or more and you want no other pause."""
    stall_timeout_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 7200.0
    """Seconds in which no prompt, batch or step ends, after which a run counts as stalled and ends. A sound
    run takes 50 minutes for 100 turns of 30 s, and tens of minutes for an update of long rows. A run that ends too soon
    would end at the same place again, so the default is twice that."""
    model_family: Annotated[str, text("a name")] = "ui_tars_15"
    """How the model is asked and how it answers: one of `arpo_verl.agent.models.family.SHIPPED`, or
    `package.module:NAME`, a `ModelFamily` of yours. Name the family that the model was trained for."""
    language: Annotated[str, text("a name")] = "English"
    """Language of the model's thoughts. Only UI-TARS is asked for one."""
    harness: str | list[str] | None = None
    """What plays an episode; see docs/harness.md. null: our own loop. `package.module:function`: your async function.
    It runs in the rollout worker, so you must trust it. A command, as text with spaces or as a list: a separate
    program, run as an unprivileged user. With a harness, `max_screenshots` limits the images of one request."""
    harness_env: dict[str, str] = field(default_factory=lambda: dict(HARNESS_ENV))
    """Environment variables of the command, by name. In a value, {endpoint} is the address that answers like OpenAI's
    API, {token} its key, {desktop} the desktop's address, {instruction} and {task_id} the task's."""
    harness_timeout_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 600.0
    """Seconds of its own that a harness may use for an episode. Waiting for the engine or the desktop does not count.
    The default leaves 40 s for each of 15 turns."""
    harness_memory_mb: Annotated[int, whole(64, "a whole number of megabytes from 64")] = 2048
    """Most memory of the command, with its files; sure only with control groups. Python with an agent takes 300 MB."""
    harness_shell: Annotated[bool, truth()] = False
    """Whether the command may run shell commands on its desktop, and read and write files there. If not, it can only
    act by pyautogui, as our loop does."""
    harness_network: Annotated[bool, truth()] = False
    """Whether the command may reach what the rollout worker reaches, for a program that asks other servers. If not, it
    reaches only its endpoint and its desktop."""
    trajectory_dir: Annotated[str | None, text("a folder or null")] = None
    """Folder for the records of the episodes, with screenshots; None records nothing. See docs/trajectories.md."""
    record: Annotated[str, one_of(RECORDS)] = ALL
    """Which episodes keep their screenshots, which are nearly all of a record's bytes. `all`: every episode.
    `failures_and_replays`: a full success keeps only text and numbers, since a good policy's successes are many and
    alike; it gets its screenshots back when it is replayed. `none`: no episode is written."""
    record_share: Annotated[float, number(lambda x: 0 <= x <= 1, "in [0, 1]")] = 1.0
    """Share of the groups that are recorded, from 0 to 1. Groups are recorded whole, so that you can compare failures
    with successes. Their uid decides, so all workers choose the same ones. 0 writes only `groups.jsonl`."""
    trajectory_budget_bytes: Annotated[int | None, whole(1, "a whole number of bytes from 1, or null")] = 20 * 1024**3
    """Most bytes of all records together; None sets no limit. Above it, we remove the screenshots of the oldest
    training steps, then those of the oldest validations. Texts, numbers and the running step stay. 20 GiB hold some
    6,000 episodes of 15 screenshots of 0.24 MB (1080p PNG, plain background)."""

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
        """The model's family."""
        return load_family(self.model_family)

    @property
    def recorded_in(self) -> str | None:
        """The folder of the records; None if nothing is recorded."""
        return None if self.record == NONE else self.trajectory_dir

    @property
    def max_turns(self) -> int:
        """Most replies that `max_steps` and the limit of screenshots allow together."""
        return self.row_screenshots if self.context == FULL and self.harness is None else self.max_steps

    @property
    def row_screenshots(self) -> int:
        """Most screenshots in one row, or in one request of a harness."""
        if self.harness is not None:
            return self.max_screenshots or self.max_steps
        usual = {FULL: self.max_steps, WINDOW: self.family.window, SEGMENTS: _SEGMENT_SCREENSHOTS}
        return usual[str(self.context)] if self.max_screenshots is None else self.max_screenshots

    @property
    def max_rows(self) -> int:
        """Rows of an episode that takes all its turns, if no row ends early at the token limits. A harness may begin a
        row with each reply."""
        if self.harness is not None:
            return self.max_steps
        kept = self.screenshots_kept
        beyond = 0 if kept is None else max(0, self.max_steps - self.row_screenshots)
        return 1 + math.ceil(beyond / (self.row_screenshots - (kept or 0) + 1))

    @property
    def screenshots_kept(self) -> int | None:
        """How many of the last screenshots a new row begins with when one is full; None: there is no new row."""
        if self.context == FULL:
            return None
        half = (self.row_screenshots + 1) // 2
        return self.row_screenshots if self.context == WINDOW else self.kept_screenshots or half


def check_lengths(config: GuiAgentConfig, response_length: int, screenshot_tokens: int) -> None:
    """Check that the token limits leave room for a second turn.

    Args:
        response_length: `actor_rollout_ref.rollout.response_length`, for all replies and all screenshots but the first.
        screenshot_tokens: visual tokens of one screenshot (`ImageGeometry.num_tokens`).

    Raises:
        ConfigError: they leave no room.
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
