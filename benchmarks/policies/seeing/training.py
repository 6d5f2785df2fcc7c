"""The three stages of lessons, each of which goes on where it was interrupted."""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from arpo_verl.errors import ConfigError
from arpo_verl.files import replacing_directory
from arpo_verl.models.family import load_family
from arpo_verl.policy.shipped import check_out
from arpo_verl.tasks.families import generate
from arpo_verl.tasks.families.lexicon import HELD_OUT_WORDS
from policies.build import save_policy
from policies.seeing.acting import ActingLesson, Row, RowBuilder, Score, blurred, ideal_tokens
from policies.seeing.beginnings import FLAG, IS_VISUAL, begin, build_tokenizer, guarded, processor_of, word_ids
from policies.seeing.captures import Capture, capture, load_captures, mixture, shifted_capture
from policies.seeing.examples import LEXICON, Example, examples_of
from policies.seeing.layout import HIDDEN, REST, SAID, WORD, spread_codes
from policies.seeing.reading import ReadingLesson
from policies.seeing.screens import Screen, draw_sheet
from policies.seeing.vision import encode, patches_of

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LessonPlan:
    """How long each stage lasts, in updates, and what it learns from."""

    tasks: int = 240
    """Training tasks that the expert plays for captures; the last tenth is kept for measuring."""
    sheets: int = 240
    """Windows that are captured for reading alone."""
    letters: int = 500
    reading: int = 3500
    acting: int = 600
    """In ideal visual tokens."""
    joining: int = 300
    """In those of the trained tower."""
    seed: int = 0
    every: int = 100
    """Updates between two checkpoints, and two measurements on unseen screens."""


@dataclass
class _Stage:
    """One stage's parameters, and its place in its schedule."""

    name: str
    folder: Path
    modules: Sequence[torch.nn.Module]
    parameters: Sequence[torch.nn.Parameter]
    rate: float
    updates: int
    warmup: int = 40

    def run(self, loss_of: Callable[[int], torch.Tensor], measure: Callable[[], str], every: int) -> None:
        """Train to the end of the schedule, from the last checkpoint on."""
        optimizer = torch.optim.AdamW(self.parameters, lr=self.rate, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share)
        kept = [*self.modules, optimizer, schedule]
        done = self._load(kept)
        for update in range(done, self.updates):
            loss = loss_of(update)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            optimizer.step()
            schedule.step()
            if (update + 1) % every == 0 or update + 1 == self.updates:
                print(
                    f"{self.name} {update + 1}/{self.updates}: loss {loss.item():.3f}; unseen: {measure()}", flush=True
                )
                self._save(kept, update + 1)

    def _share(self, update: int) -> float:
        return min(1.0, (update + 1) / self.warmup) * (
            0.03 + 0.97 * (1 + math.cos(math.pi * min(1.0, update / self.updates))) / 2
        )

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.name}.pt"

    def _load(self, kept: Sequence[Any]) -> int:
        if not self._file.exists():
            return 0
        try:
            states = torch.load(self._file, weights_only=True)
            for one, state in zip(kept, states["kept"], strict=True):
                one.load_state_dict(state)
            done: int = states["done"]
        except (OSError, EOFError, RuntimeError, UnpicklingError, KeyError, ValueError) as error:
            raise ConfigError(f"{self._file} must be this stage's checkpoint, got {error!r}; remove it") from error
        return done

    def _save(self, kept: Sequence[Any], done: int) -> None:
        partial = self._file.with_suffix(".partial")
        torch.save({"kept": [one.state_dict() for one in kept], "done": done}, partial)
        os.replace(partial, self._file)


class Schooling:
    """The policy, its lessons, and the folder that they are kept in."""

    def __init__(self, folder: Path, plan: LessonPlan) -> None:
        from arpo_verl.plugin.settings import chat_tokenizer, load_processor

        self.folder, self.plan = folder, plan
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = build_tokenizer(_corpus(), LEXICON)
        self.model: Qwen2_5_VLForConditionalGeneration = begin(tokenizer, LEXICON, plan.seed)
        self.processor = processor_of(tokenizer)
        save_policy(folder / "beginning", self.model, self.processor)
        processor = load_processor(folder / "beginning")
        self.rows = RowBuilder(chat_tokenizer(processor.tokenizer, processor, "qwen2_5_vl"), LEXICON)
        self.codes = spread_codes(len(LEXICON), WORD.stop - WORD.start, plan.seed)
        held_out = [LEXICON.index(word) for word in HELD_OUT_WORDS]
        banned = word_ids(tokenizer, LEXICON)[held_out].flatten().tolist()
        self.reading = ReadingLesson(self.model.model.visual, LEXICON, self.codes)
        self.acting = ActingLesson(self.model, self.rows, banned)
        # Whose weights the lesson on attention needs; the folder that is written says nothing of it.
        self.model.model.language_model.set_attn_implementation("eager")

    def learn(self) -> None:
        """All stages, one after the other.

        Raises:
            DesktopError: no desktop starts for the captures.
        """
        plan = self.plan
        capture(self.folder / "captures", plan.tasks, plan.sheets)
        captures = load_captures(self.folder / "captures", plan.tasks, plan.sheets)
        last = plan.tasks - max(1, plan.tasks // 10)
        kept = {task.spec["id"] for task in (generate("training", number) for number in range(last, plan.tasks))}
        unseen = [one for one in captures if one.example is not None and one.example.task_id in kept]
        seen = [one for one in captures if one.example is None or one.example.task_id not in kept]
        self._read([one.screen for one in seen], [one.screen for one in unseen if one.screen.texts])
        self._act()
        self._join([one for one in seen if one.example is not None], unseen)

    def export(self, out: Path) -> None:
        """Write the policy as a model folder.

        Raises:
            ConfigError: as `check_out`.
        """
        check_out("seeing", out)
        with replacing_directory(out) as scratch:
            save_policy(scratch, self.model, self.processor)

    # --- The stages ----------------------------------------------------------------------------------------------

    def _read(self, screens: Sequence[Screen], unseen: Sequence[Screen]) -> None:
        visual, plan = self.model.model.visual, self.plan

        def loss_of(update: int) -> torch.Tensor:
            rng = random.Random(f"{plan.seed} reading {update}")
            if update < plan.letters:
                plain = rng.random() > update / (0.6 * plan.letters)
                sheets = [draw_sheet(LEXICON, rng, plain), draw_sheet(LEXICON, rng, plain), mixture(screens, rng)]
                return self.reading.letter_loss(visual, sheets)
            loss: torch.Tensor = self.reading(visual, [draw_sheet(LEXICON, rng), mixture(screens, rng)])[0]
            return loss

        def measure() -> str:
            with torch.no_grad():
                right = [self.reading(visual, [screen])[1] for screen in unseen]
            return f"{sum(right) / len(right):.0%} of visual tokens read"

        parameters = [*visual.parameters(), *self.reading.parameters()]
        stage = _Stage("reading", self.folder, [visual, self.reading], parameters, 3e-3, plan.letters + plan.reading)
        stage.run(loss_of, measure, plan.every)
        visual.requires_grad_(False)
        _silence(visual)

    def _act(self) -> None:
        plan = self.plan
        held = [e for split in ("held_out_seeds", "held_out_words") for n in range(12) for e in examples_of(split, n)]

        def loss_of(update: int) -> torch.Tensor:
            rng = random.Random(f"{plan.seed} acting {update}")
            chosen = [rng.choice(list(examples_of("training", rng.randrange(10**6)))) for _ in range(6)]
            return self._loss_on_ideal(chosen, update, rng)

        def measure() -> str:
            return str(self._score([self.rows.row(one) for one in held], [self._ideal(one, 0) for one in held]))

        self._stage("acting", 6e-4, plan.acting, loss_of, measure)

    def _join(self, captures: Sequence[Capture], unseen: Sequence[Capture]) -> None:
        plan = self.plan

        def loss_of(update: int) -> torch.Tensor:
            rng = random.Random(f"{plan.seed} joining {update}")
            taken = [shifted_capture(rng.choice(captures), rng) for _ in range(4)]
            rows = [self.rows.row(one.example) for one in taken if one.example is not None]
            seen = self._acting_loss(rows, list(self._seen([one.screen for one in taken])), rng)
            chosen = [rng.choice(list(examples_of("training", rng.randrange(10**6)))) for _ in range(2)]
            return seen + 0.5 * self._loss_on_ideal(chosen, update, rng)

        def measure() -> str:
            rows = [self.rows.row(one.example) for one in unseen if one.example is not None]
            return str(self._score(rows, list(self._seen([one.screen for one in unseen]))))

        self._stage("joining", 3e-4, plan.joining, loss_of, measure)

    def _stage(self, name: str, rate: float, updates: int, loss_of: Any, measure: Callable[[], str]) -> None:
        language, head = self.model.model.language_model, self.model.lm_head
        with guarded(self.model, word_ids(self.rows.tokenizer, LEXICON)) as parameters:
            stage = _Stage(name, self.folder, [language, head], parameters, rate, updates)
            stage.run(loss_of, measure, self.plan.every)

    # --- Their parts ---------------------------------------------------------------------------------------------

    def _ideal(self, example: Example, seed: int) -> torch.Tensor:
        tokens = ideal_tokens(example.texts, LEXICON, self.codes)
        return blurred(tokens, torch.Generator().manual_seed(seed))

    def _loss_on_ideal(self, examples: Sequence[Example], update: int, rng: random.Random) -> torch.Tensor:
        tokens = [self._ideal(example, 100 * update + number) for number, example in enumerate(examples)]
        return self._acting_loss([self.rows.row(example) for example in examples], tokens, rng)

    def _acting_loss(self, rows: Sequence[Row], tokens: Sequence[torch.Tensor], rng: random.Random) -> torch.Tensor:
        """In three of four updates all codes are turned: what holds for any code holds for words never acted on."""
        size, turn = WORD.stop - WORD.start, None
        if rng.random() < 0.75:
            generator = torch.Generator().manual_seed(rng.randrange(2**31))
            turn = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
        return self.acting.loss(rows, tokens, turn)[0]

    @torch.no_grad()
    def _seen(self, screens: Sequence[Screen]) -> torch.Tensor:
        parts = [encode(self.model.model.visual, patches_of([screen.pixels]))[0] for screen in screens]
        return torch.cat(parts)

    @torch.no_grad()
    def _score(self, rows: Sequence[Row], tokens: Sequence[torch.Tensor]) -> Score:
        total = Score()
        for start in range(0, len(rows), 8):
            total.add(self.acting.loss(rows[start : start + 8], tokens[start : start + 8])[2])
        return total


@torch.no_grad()
def _silence(visual: Any) -> None:
    """What the tower says outside of its parts of the hidden states was never taught: zero, but for its marks."""
    last = visual.merger.mlp[2]
    for part in (SAID, slice(REST.start, REST.start + 6), slice(REST.start + 7, HIDDEN)):
        last.weight[part] = 0
        last.bias[part] = 0
    last.bias[IS_VISUAL] = FLAG


def _corpus() -> list[str]:
    """All that is said, without the words of the lexicon, which are tokens of their own."""
    texts = [
        part["text"] for message in load_family("small").opening("", "English", ())[:-1] for part in message["content"]
    ]
    texts += [text for n in range(120) for one in examples_of("training", n) for text in (one.instruction, one.reply)]
    for word in LEXICON[:-1]:
        texts = [text.replace(word, " ") for text in texts]
    # Twice: a tokenizer merges what it has seen at least twice.
    return texts * 2
