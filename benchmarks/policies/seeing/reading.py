"""The first lesson, reading: what each visual token must say, letters and spellings on the way to whole words.

Words alone are learned late: with 125 of them the first 900 updates of two screens each found 2% of the words of unseen
screens. So letters are asked for early in the vision tower and spellings just before its end, by two heads that are
thrown away. Directions are compared by their cosine, not by their product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import torch
from torch.nn import functional

from policies.architecture import MERGE_SIZE, PATCH_SIZE
from policies.seeing.beginnings import FLAG, IS_TITLE, PLACE_NORM, WORD_NORM
from policies.seeing.layout import CELL, COLUMNS, ROWS, WORD, X, Y, place_code
from policies.seeing.screens import Screen, Text, cells_of
from policies.seeing.vision import encode, patches_of

EARLY = 1
"""The block after which letters are asked for."""
_NONE, _UNSURE = -1, -2
_TEMPERATURE = 16.0
_LONGEST = 7
_NO_LETTER = len(ascii_letters)
_PATCHES = CELL // PATCH_SIZE


@dataclass(frozen=True)
class ReadingTargets:
    """What the visual tokens of one screen must say, row by row, C of them."""

    words: torch.Tensor
    """(C,) int64: the number of the word in the lexicon, -1 where there is none, -2 where a text only touches."""
    offsets: torch.Tensor
    """(C, 2) pixels from the token's middle to where a click on its text goes."""
    titles: torch.Tensor
    """(C,) bool."""
    letters: torch.Tensor | None
    """(4 C, 2) int64: the letter in each patch's left and right half, in the patches' order; None: not known."""


def targets_of(screen: Screen, lexicon: Sequence[str]) -> ReadingTargets:
    """The reading lesson's targets for a screen."""
    words = torch.full((ROWS * COLUMNS,), _NONE)
    offsets, titles = torch.zeros(len(words), 2), torch.zeros(len(words), dtype=torch.bool)
    for text in screen.texts:
        words[_touched(text)] = _UNSURE
    most = [0.0] * len(words)
    for text in screen.texts:
        x, y = text.target or text.centre
        for cell in cells_of(text):
            row, column = divmod(cell, COLUMNS)
            width = min(text.box[2], (column + 1) * CELL) - max(text.box[0], column * CELL)
            if width > most[cell]:
                most[cell], words[cell], titles[cell] = width, lexicon.index(text.text), text.is_title
                offsets[cell] = torch.tensor([x - (column + 0.5) * CELL, y - (row + 0.5) * CELL])
    known = all(text.letters for text in screen.texts)
    return ReadingTargets(words, offsets, titles, _letters(screen.texts) if known else None)


def _touched(text: Text) -> list[int]:
    left, top, right, bottom = text.box
    rows = range(max(0, int(top // CELL)), min(ROWS - 1, int((bottom - 1) // CELL)) + 1)
    columns = range(max(0, int(left // CELL)), min(COLUMNS - 1, int((right - 1) // CELL)) + 1)
    return [row * COLUMNS + column for row in rows for column in columns]


def _letters(texts: Sequence[Text]) -> torch.Tensor:
    slots = torch.full((ROWS * COLUMNS * _PATCHES**2, 2), _NO_LETTER)
    for text in texts:
        row = int(text.centre[1] // PATCH_SIZE)
        for letter, x in zip(text.text, text.letters, strict=True):
            column = int(x // PATCH_SIZE)
            if 0 <= row < ROWS * _PATCHES and 0 <= column < COLUMNS * _PATCHES:
                cell = row // MERGE_SIZE * COLUMNS + column // MERGE_SIZE
                patch = cell * MERGE_SIZE**2 + row % MERGE_SIZE * MERGE_SIZE + column % MERGE_SIZE
                slots[patch, int(x % PATCH_SIZE >= PATCH_SIZE / 2)] = ascii_letters.index(letter)
    return slots


class ReadingLesson(torch.nn.Module):
    """The losses of reading, and the two heads that are thrown away after it."""

    def __init__(self, visual: Any, lexicon: Sequence[str], codes: torch.Tensor) -> None:
        """`codes` (words, size) of norm 1 in the order of `lexicon`."""
        super().__init__()
        self.lexicon, self.codes = lexicon, codes
        size: int = visual.config.hidden_size
        self.letters = torch.nn.Linear(size, 2 * (_NO_LETTER + 1))
        self.spelling = torch.nn.Linear(size * MERGE_SIZE**2, _LONGEST * 27)
        self._spelled = torch.full((len(lexicon), _LONGEST), 26)
        for number, word in enumerate(lexicon):
            for place, letter in enumerate(word.lower()[:_LONGEST]):
                self._spelled[number, place] = ord(letter) - ord("a")

    def forward(self, visual: Any, screens: Sequence[Screen]) -> tuple[torch.Tensor, float]:
        """The loss of a batch, a mean over its screens, and the share of its words' tokens that were read right."""
        tokens, early, hidden = encode(visual, patches_of([screen.pixels for screen in screens]), EARLY)
        losses, right = [], []
        for number, screen in enumerate(screens):
            target = targets_of(screen, self.lexicon)
            loss, hits = self.of_tokens(tokens[number], target)
            word = target.words >= 0
            if word.any():
                loss = loss + 2 * self._spelling_loss(hidden[number][word], target.words[word])
            if target.letters is not None:
                loss = loss + self._letter_loss(early[number], target.letters)
            losses.append(loss)
            right.append(hits)
        return torch.stack(losses).mean(), torch.cat(right).float().mean().item()

    def letter_loss(self, visual: Any, screens: Sequence[Screen]) -> torch.Tensor:
        """The loss of letters alone."""
        early = encode(visual, patches_of([screen.pixels for screen in screens]), EARLY)[1]
        letters = [targets_of(screen, self.lexicon).letters for screen in screens]
        known = [self._letter_loss(one, slots) for one, slots in zip(early, letters, strict=True) if slots is not None]
        return torch.stack(known).mean()

    def of_tokens(self, tokens: torch.Tensor, target: ReadingTargets) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of one screen's tokens (C, hidden size), and for each token of a word whether it was read right."""
        said, word, none = tokens[:, WORD].float(), target.words >= 0, target.words == _NONE
        length = said.norm(dim=-1) / WORD_NORM
        loss = length[none].square().mean()
        if not word.any():
            return loss, torch.zeros(0, dtype=torch.bool)
        logits = _TEMPERATURE * functional.normalize(said[word], dim=-1) @ self.codes.T
        loss = loss + functional.cross_entropy(logits, target.words[word]) + (length[word] - 1).square().mean()
        places = torch.cat([place_code(target.offsets[word, axis]) for axis in (0, 1)], -1) * PLACE_NORM
        read = torch.cat([tokens[word, X], tokens[word, Y]], -1)
        loss = loss + (read - places).square().sum(-1).mean() / PLACE_NORM**2
        titles = (tokens[word, IS_TITLE] / FLAG - target.titles[word].float()).square().mean()
        return loss + titles, logits.argmax(-1) == target.words[word]

    def _spelling_loss(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        logits = self.spelling(hidden.float()).view(-1, _LONGEST, 27)
        return functional.cross_entropy(logits.flatten(0, 1), self._spelled[words].flatten())

    def _letter_loss(self, early: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
        logits = self.letters(early.float()).view(-1, _NO_LETTER + 1)
        weights = torch.ones(_NO_LETTER + 1)
        weights[_NO_LETTER] = 0.05  # most patches have none
        return functional.cross_entropy(logits, letters.flatten(), weight=weights)
