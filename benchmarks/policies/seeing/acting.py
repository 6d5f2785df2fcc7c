"""The second lesson, acting: the expert's replies, and where the policy must look while it writes them.

Losses on tokens alone teach neither pointing nor copying within thousands of updates. So the lesson says as well where
the heads of `beginnings` must look: `looks_of`. It is given visual tokens, those of the vision tower or those that a
perfect one would give (`ideal_tokens`): on these it takes as many tasks as there are seeds, and no desktop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from arpo_verl.models.family import load_family
from policies.seeing.beginnings import FLAG, IS_TITLE, IS_VISUAL, PLACE_NORM, WORD_NORM, word_ids
from policies.seeing.examples import Example
from policies.seeing.layout import (
    CELL,
    COLUMNS,
    HIDDEN,
    REST,
    ROWS,
    SAID,
    SCREEN,
    WORD,
    X,
    Y,
    place_code,
)
from policies.seeing.screens import Text, cells_of

CELLS = ROWS * COLUMNS
PLACED = 1
"""The layer behind which a visual token must say where to click."""
_SPREAD = 2.5  # pixels: a coordinate so far off is nearly as good


class Look(NamedTuple):
    """One head of one layer, at the token `query`, must look at one of the tokens `keys`."""

    layer: int
    head: int
    query: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """An example in T tokens, as a run with one screenshot in context has it."""

    example: Example
    input_ids: torch.Tensor
    """(T,) int64."""
    reply_start: int
    visual_start: int
    position_ids: torch.Tensor
    """(3, T) int64."""
    looks: tuple[Look, ...]


@dataclass
class Score:
    """How a batch was answered, greedily: whether names, coordinates and all other tokens were right."""

    names: list[bool] = field(default_factory=list)
    misses: list[int] = field(default_factory=list)
    """Of coordinates, in pixels."""
    others: list[bool] = field(default_factory=list)

    def add(self, other: Score) -> None:
        self.names += other.names
        self.misses += other.misses
        self.others += other.others

    def __str__(self) -> str:
        near = [miss <= 8 for miss in self.misses]
        parts = {"names right": self.names, "coordinates within 8 pixels": near, "other tokens right": self.others}
        return ", ".join(f"{sum(hits) / max(1, len(hits)):.0%} of {len(hits)} {what}" for what, hits in parts.items())


class RowBuilder:
    """Tokenizes examples through the agent loop's own code, and finds what is to be looked at."""

    def __init__(self, chat: Any, lexicon: Sequence[str]) -> None:
        """`chat` as `arpo_verl.plugin.settings.chat_tokenizer` makes it."""
        self.tokenizer, self._chat = chat.tokenizer, chat
        ids = word_ids(self.tokenizer, lexicon).tolist()
        self.words = {token: number for number, forms in enumerate(ids) for token in forms}
        numbers = self.tokenizer.convert_tokens_to_ids([str(number) for number in range(SCREEN.width)])
        self.numbers = {token: number for number, token in enumerate(numbers)}
        self.image, self.start, self.x_mark = (
            self.tokenizer.convert_tokens_to_ids(token) for token in ("<|image_pad|>", "<|vision_start|>", "(")
        )

    def row(self, example: Example) -> Row:
        """The row of an example."""
        messages = load_family("small").opening(example.instruction, "English", example.earlier)
        prompt = self._chat.prompt(messages, SCREEN)
        reply = self.tokenizer.encode(example.reply, add_special_tokens=False)
        ids = [*prompt, *reply, self.tokenizer.eos_token_id]
        first = ids.index(self.image)
        looks = tuple(self._looks(example, ids, len(prompt), first))
        return Row(example, torch.tensor(ids), len(prompt), first, _positions(len(ids), first), looks)

    def _looks(self, example: Example, ids: Sequence[int], reply_start: int, first: int) -> list[Look]:
        looks: list[Look] = []
        words = [place for place, token in enumerate(ids) if token in self.words]
        turn = self.tokenizer.convert_tokens_to_ids("assistant")
        asked = [place for place in words if place < min(first, ids.index(turn))]
        looks += [Look(1, 1, later, (earlier,)) for earlier, later in zip(asked, asked[1:], strict=False)]
        looks += [look for text in example.texts for look in _title_looks(text, example.texts, first)]
        named = next((place for place in words if place >= reply_start), None)
        if named is None or example.clicked is None:
            return looks
        before = [place for place in words if place < reply_start]
        looks += [Look(1, 0, named - 1, (before[-1],))]
        source = [place for place in asked if self.words[ids[place]] == self.words[ids[named]]][:1]
        if not source and example.note is not None:
            noted = (t for t in example.texts if t.text == example.named and t.window == example.note)
            source = [first + cell for text in noted for cell in cells_of(text)]
        looks += [Look(2, 0, named - 1, tuple(source))] if source else []
        shown = tuple(first + cell for cell in cells_of(example.clicked))
        for place in range(named, len(ids)):
            if ids[place] in self.numbers:
                head = 0 if ids[place - 1] == self.x_mark else 1
                looks += [Look(1, 0, place - 1, (named,)), Look(3, 1 - head, place - 1, (first - 1,))]
                looks += [Look(3, head, place - 1, shown)] if shown else []
        return looks


def _title_looks(text: Text, texts: Sequence[Text], first: int) -> list[Look]:
    """From what stands in a window to its title, where that comes before it."""
    if text.is_title:
        return []
    title = next((other for other in texts if other.is_title and other.window == text.window), None)
    held = [] if title is None else cells_of(title)
    looks = (Look(1, 1, first + cell, tuple(first + one for one in held if one < cell)) for cell in cells_of(text))
    return [look for look in looks if look.keys]


def _positions(length: int, first: int) -> torch.Tensor:
    """As `get_rope_index` gives them for one screen."""
    cells = torch.arange(CELLS)
    before, after = torch.arange(first), torch.arange(length - first - CELLS) + first + max(ROWS, COLUMNS)
    axes = (torch.zeros_like(cells), cells // COLUMNS, cells % COLUMNS)
    return torch.stack([torch.cat([before, first + axis, after]) for axis in axes])


def ideal_tokens(texts: Sequence[Text], lexicon: Sequence[str], codes: torch.Tensor) -> torch.Tensor:
    """What a perfect vision tower says of a screen, (192, hidden size)."""
    tokens = torch.zeros(CELLS, HIDDEN)
    for text in texts:
        for cell in cells_of(text):
            row, column = divmod(cell, COLUMNS)
            x, y = text.target or text.centre
            tokens[cell, WORD] = codes[lexicon.index(text.text)] * WORD_NORM
            tokens[cell, X] = place_code(torch.tensor(x - (column + 0.5) * CELL)) * PLACE_NORM
            tokens[cell, Y] = place_code(torch.tensor(y - (row + 0.5) * CELL)) * PLACE_NORM
            tokens[cell, IS_TITLE] = FLAG * text.is_title
    tokens[:, IS_VISUAL] = FLAG
    return tokens


def blurred(tokens: torch.Tensor, generator: torch.Generator, noise: float = 0.25) -> torch.Tensor:
    """Ideal tokens with the errors of a real tower."""
    blur = torch.randn(tokens.shape, generator=generator) * noise
    blur[:, SAID] = blur[:, REST] = 0
    blank = tokens[:, WORD].abs().sum(-1) == 0
    return tokens + torch.where(blank[:, None], 0.5 * blur, blur)


class ActingLesson:
    """The losses of acting."""

    def __init__(self, model: Any, builder: RowBuilder, banned: Sequence[int]) -> None:
        """`banned`: tokens that are no answer here and must not be unlearned: the held-out words."""
        self._model, self._builder, self._banned = model, builder, torch.tensor(banned, dtype=torch.long)
        pixels = torch.arange(SCREEN.width)
        self._near = torch.softmax(-((pixels[:, None] - pixels) ** 2) / (2 * _SPREAD**2), -1)
        self._number_ids = torch.tensor(list(builder.numbers))

    def loss(
        self, rows: Sequence[Row], visual: Sequence[torch.Tensor], turn: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, float], Score]:
        """The loss of a batch, its parts, and how the batch was answered.

        Args:
            visual: each row's visual tokens, (192, hidden size).
            turn: a rotation (42, 42) of all words' codes: what is learned in turned codes holds for any word.
        """
        hidden, weights, placed = self._forward(rows, visual, turn)
        score, token_losses, looked = Score(), [], defaultdict(list)
        for number, row in enumerate(rows):
            logits = self._model.lm_head(hidden[number, row.reply_start - 1 : len(row.input_ids) - 1]).float()
            token_losses.append(self._token_loss(logits, row, score))
            for layer, head, query, keys in row.looks:
                seen = weights[layer][number, head, query, list(keys)].sum()
                looked[layer, head, query < row.visual_start + CELLS].append(-seen.clamp_min(1e-6).log())
        parts = {
            "tokens": torch.cat(token_losses).mean(),
            "places": _place_loss(rows, placed),
            "looks": sum((torch.stack(one).mean() for one in looked.values()), torch.zeros(())),
        }
        loss = 2 * parts["tokens"] + parts["places"] + 0.3 * parts["looks"]
        return loss, {name: value.item() for name, value in parts.items()}, score

    def _forward(
        self, rows: Sequence[Row], visual: Sequence[torch.Tensor], turn: torch.Tensor | None
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """The last hidden states, ready for the output table; each layer's attention; what `PLACED` hands on."""
        language = self._model.model.language_model
        length = max(len(row.input_ids) for row in rows)
        embedded = []
        for row, tokens in zip(rows, visual, strict=True):
            text = language.embed_tokens(functional.pad(row.input_ids, (0, length - len(row.input_ids))))
            end = row.visual_start + CELLS
            embedded.append(torch.cat([text[: row.visual_start], tokens, text[end:]]))
        x = torch.stack(embedded)
        if turn is not None:
            x = torch.cat([x[..., WORD] @ turn, x[..., WORD.stop :]], -1)
        positions = [functional.pad(row.position_ids, (0, length - row.position_ids.shape[1])) for row in rows]
        rotary = language.rotary_emb(x, torch.stack(positions, 1))
        # Padding is behind every token, so no causal attention sees it.
        mask = torch.full((length, length), -1e9).triu(1)[None, None]
        weights, placed = [], x
        for number, layer in enumerate(language.layers):
            out, weight = layer.self_attn(layer.input_layernorm(x), attention_mask=mask, position_embeddings=rotary)
            x = x + out
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            weights.append(weight)
            if number == PLACED:
                placed = x
        x = language.norm(x)
        if turn is not None:
            x = torch.cat([x[..., : SAID.start], x[..., SAID] @ turn.T, x[..., SAID.stop :]], -1)
        return x, weights, placed

    def _token_loss(self, logits: torch.Tensor, row: Row, score: Score) -> torch.Tensor:
        logits = logits.index_fill(1, self._banned, -1e4)
        targets = row.input_ids[row.reply_start :]
        losses, best = functional.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1)
        coordinates = []
        for place, target in enumerate(targets.tolist()):
            if target in self._builder.numbers:
                wanted = self._builder.numbers[target]
                said = logits[place].log_softmax(-1)[self._number_ids]
                near = self._near[wanted]
                coordinates.append((near * (near.clamp_min(1e-9).log() - said)).sum())
                score.misses.append(abs(int(said.argmax()) - wanted))
            else:
                names = score.names if target in self._builder.words else score.others
                names.append(bool(best[place] == target))
        is_number = torch.isin(targets, self._number_ids)
        return torch.cat([losses[~is_number], *(one[None] for one in coordinates)])


def _place_loss(rows: Sequence[Row], placed: torch.Tensor) -> torch.Tensor:
    """How far the visual tokens of texts are from saying where to click."""
    said, wanted = [], []
    for number, row in enumerate(rows):
        for text in row.example.texts:
            target = torch.tensor(text.target or text.centre)
            for cell in cells_of(text):
                said.append(placed[number, row.visual_start + cell, X.start : Y.stop])
                wanted.append(torch.cat([place_code(target[0]), place_code(target[1])]))
    if not said:
        return torch.zeros(())
    return (torch.stack(said) - torch.stack(wanted) * PLACE_NORM).square().sum(-1).mean() / PLACE_NORM**2
