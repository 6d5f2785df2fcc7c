"""The policy before its lessons: its tokenizer, its sizes, and first weights through which words and places travel.

Random layers swamp what a token is: after one of them the cosine between a word's hidden state and its embedding was
0.04, and no lesson on the replies alone mended that. Here the layers' first weights are small, but for eight heads and
two MLPs that do one thing each; `layout` names the parts of the hidden states that they read and write:

- layer 0: each visual token finds its column and its row, by its distance from `<|vision_start|>`;
- layer 1: from its cell and the offset that the vision tower read, where to click; each text token is told the word
  that was named last, and each word of the instruction the one before it;
- layer 2: where a word is to be named, the one behind the last named is copied;
- layer 3: where a coordinate is to be written, the visual token that shows the named word is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken

from policies.architecture import PolicySize, qwen_config
from policies.build import build_processor, corpus_tokenizer
from policies.seeing.layout import (
    CELL,
    COLUMNS,
    HEAD,
    HIDDEN,
    REST,
    ROWS,
    SAID,
    SCREEN,
    WORD,
    X,
    Y,
    place_code,
    spread_codes,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

SIZE = PolicySize(
    hidden_size=HIDDEN,
    num_layers=4,
    num_heads=HIDDEN // HEAD,
    intermediate_size=384,
    vision_hidden_size=96,
    vision_depth=4,
    vision_num_heads=3,
    vision_intermediate_size=256,
)
# Rotary pairs of a head: two, two and 28. The last 21 turn by less than half a radian over a whole context.
ROPE_THETA = 1e7
SECTIONS = [2, 2, 28]
_FREQUENCIES = ROPE_THETA ** (-torch.arange(HEAD // 2) / (HEAD // 2))
_STILL = range(11, 30)
_FLAG, _SINK = 31, 30  # of the still pairs: for marks instead of words

WORD_NORM, PLACE_NORM, FLAG = 6.0, 4.0, 4.0
IS_VISUAL, IS_WORD, IS_START, IS_SYSTEM, AT_COLUMN, AT_ROW, IS_TITLE = range(REST.start, REST.start + 7)
COLUMN = slice(REST.start + 12, REST.start + 36)
ROW = slice(REST.start + 36, REST.stop)


def build_tokenizer(corpus: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    """Each of `words` is one token, with and without a space before it, whatever follows it."""
    tokenizer = corpus_tokenizer(corpus)
    tokenizer.add_tokens([AddedToken(f"{space}{word}", normalized=False) for word in words for space in ("", " ")])
    return tokenizer


def word_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> torch.Tensor:
    """(words, 2) int64: without and with a space."""
    return torch.tensor([[tokenizer.convert_tokens_to_ids(f"{space}{word}") for space in ("", " ")] for word in words])


def processor_of(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLProcessor:
    """With pixel limits that leave a screen of `SCREEN` as it is."""
    processor = build_processor(tokenizer)
    for part in (processor.image_processor, processor.video_processor):
        part.size = {"shortest_edge": 4 * CELL**2, "longest_edge": SCREEN.width * SCREEN.height}
    return processor


def begin(
    tokenizer: PreTrainedTokenizerBase, words: Sequence[str], seed: int = 0
) -> Qwen2_5_VLForConditionalGeneration:
    """The model with its first weights."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    config: Any = qwen_config(SIZE, tokenizer)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    config.text_config.rope_parameters = {"rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": SECTIONS}
    config.vision_config.fullatt_block_indexes = [1, 3]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
        model.generation_config.pad_token_id = model.generation_config.bos_token_id = tokenizer.pad_token_id
        _begin_vision(model.model.visual)
        _begin_tables(model, tokenizer, words, seed)
        for layer in model.model.language_model.layers:
            _quiet(layer)
        first, second, third, fourth = model.model.language_model.layers
        _find_cells(first)
        _place(first.mlp, second.mlp)
        _carry(second.self_attn)
        _copy(third.self_attn)
        _look(fourth.self_attn, model.model.language_model.embed_tokens.weight, tokenizer)
    return model


@contextmanager
def guarded(model: Any, words: torch.Tensor) -> Iterator[list[torch.nn.Parameter]]:
    """The language model's parameters to train, while what must stay as it began gets no gradient.

    These are the codes of words, so that one that is never named keeps its own; and in the first two layers all that
    `begin` made by hand, but for the head that looks for the word before, which has a lesson of its own. Large first
    updates would undo it: the places that the visual tokens know were lost within fifty.

    Args:
        words: (words, 2), their tokens.
    """
    language = model.model.language_model
    masks: list[tuple[torch.nn.Parameter, tuple[Any, ...]]] = []
    for table in (language.embed_tokens.weight, model.lm_head.weight):
        masks.append((table, (words.flatten(),)))
    for layer, heads, units in zip(language.layers, (2, 1), (_CELL_UNITS, _TURN_UNITS), strict=False):
        rows, attention, mlp = slice(0, heads * HEAD), layer.self_attn, layer.mlp
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            masks += [(projection.weight, (rows,)), (projection.bias, (rows,))]
        masks += [
            (attention.o_proj.weight, (slice(None), rows)),
            (mlp.down_proj.weight, (slice(None), slice(0, units))),
        ]
        masks += [(mlp.gate_proj.weight, (slice(0, units),)), (mlp.up_proj.weight, (slice(0, units),))]
    norms = [
        norm.weight for layer in language.layers[:2] for norm in (layer.input_layernorm, layer.post_attention_layernorm)
    ]
    hooks = [parameter.register_hook(_without(index)) for parameter, index in masks]
    try:
        kept = {id(norm) for norm in norms}
        yield [p for p in (*language.parameters(), model.lm_head.weight) if id(p) not in kept]
    finally:
        for hook in hooks:
            hook.remove()


def _without(index: tuple[Any, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    def cut(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient[index] = 0
        return gradient

    return cut


# --- The vision tower --------------------------------------------------------------------------------------------


def _begin_vision(visual: Any) -> None:
    """Patches as the lowest frequencies of their brightness: contrast at once, whatever the paper's colour."""
    for block in visual.blocks:
        for name, weight in block.named_parameters():
            if weight.dim() == 2 and "norm" not in name:
                torch.nn.init.xavier_uniform_(weight, gain=0.7)
    kernel = visual.patch_embed.proj.weight
    size = kernel.shape[-1]
    steps = torch.arange(size)
    waves = torch.cos(torch.pi * steps[:, None] * (steps + 0.5) / size) * (2 / size) ** 0.5
    waves[0] /= 2**0.5
    by_frequency = sorted(((i, j) for i in range(size) for j in range(size)), key=lambda ij: ij[0] ** 2 + ij[1] ** 2)
    brightness = torch.tensor([0.3, 0.5, 0.2])[:, None, None, None]
    kernel.zero_()
    for number, (i, j) in enumerate(by_frequency[1 : len(kernel) - 1]):
        kernel[number] = brightness * waves[i][:, None] * waves[j] / 2
    kernel[-2] = brightness * 0.002
    kernel[-1, 0], kernel[-1, 2] = 0.0036, -0.0036


# --- The tables --------------------------------------------------------------------------------------------------


def _begin_tables(model: Any, tokenizer: Any, words: Sequence[str], seed: int) -> None:
    table, out = model.model.language_model.embed_tokens.weight, model.lm_head.weight
    codes = spread_codes(len(words), WORD.stop - WORD.start, seed)
    table.zero_()
    table[:, REST.start + 7 : REST.stop] = torch.randn(len(table), REST.stop - REST.start - 7) * 0.8
    out.copy_(0.05 * torch.randn_like(out))
    ids = word_ids(tokenizer, words)
    for form in range(2):
        table[ids[:, form]] *= 0.1
        table[ids[:, form], WORD] = codes * WORD_NORM
        table[ids[:, form], IS_WORD] = FLAG
        out[ids[:, form], SAID] = codes * (1 + form)  # with a space, as in a thought
    for token, mark in (("<|vision_start|>", IS_START), ("system", IS_SYSTEM)):
        token_id = tokenizer.convert_tokens_to_ids(token)
        assert token_id != tokenizer.unk_token_id
        table[token_id] = 0
        table[token_id, mark] = WORD_NORM
    numbers = torch.arange(SCREEN.width)
    number_ids = torch.tensor(tokenizer.convert_tokens_to_ids([str(number) for number in numbers.tolist()]))
    out[number_ids, X] = place_code(numbers) * 8
    for before in ("(", ","):
        direction = table[tokenizer.convert_tokens_to_ids(before)]
        out[number_ids] += direction * 2 / direction.norm()


# --- The layers --------------------------------------------------------------------------------------------------


def _quiet(layer: Any) -> None:
    for weight in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
        weight.weight.mul_(0.3)
        weight.bias.zero_()
    layer.self_attn.o_proj.weight.mul_(0.1)
    layer.mlp.down_proj.weight.mul_(0.1)


def _clear(attention: Any, *heads: int) -> None:
    for head in heads:
        part = slice(head * HEAD, (head + 1) * HEAD)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.weight[part] = 0
        attention.o_proj.weight[:, part] = 0


# Units of the first two layers' MLPs that are made by hand.
_CELL_UNITS = ROWS + COLUMNS
_TURN_UNITS = 10 * (X.stop - X.start)
# What a norm makes of a mark alone in its token, and of one beside a word of the usual length.
_ALONE = HIDDEN**0.5
_BESIDE = FLAG / ((WORD_NORM**2 + 2 * PLACE_NORM**2 + FLAG**2) / HIDDEN) ** 0.5
_SHARP = 160.0  # of which the square root of a head's size is taken: 20 in the exponent


def _find_cells(layer: Any) -> None:
    """Heads 0 and 1: between `<|vision_start|>`, the further the less, and `system`, whatever the distance."""
    attention = layer.self_attn
    _clear(attention, 0, 1)
    for head, pair, count, at in ((0, 4, COLUMNS, AT_COLUMN), (1, 3, ROWS, AT_ROW)):
        base = head * HEAD
        attention.q_proj.bias[base + _FLAG] = 10.0
        attention.q_proj.bias[base + pair] = 5.0
        for mark in (IS_START, IS_SYSTEM):
            attention.k_proj.weight[base + _FLAG, mark] = _SHARP / 10 / _ALONE
        # Zero in the middle, rising with the distance: cosine of it, a quarter turn behind.
        turn = -float(_FREQUENCIES[pair]) * (count + 1) / 2 - torch.pi / 2
        strength = 3.0 * HEAD**0.5 / 5.0 / _ALONE
        attention.k_proj.weight[base + pair, IS_START] = strength * math.cos(turn)
        attention.k_proj.weight[base + pair + HEAD // 2, IS_START] = -strength * math.sin(turn)
        attention.v_proj.weight[base, IS_START] = 6.0 / _ALONE
        attention.v_proj.weight[base, IS_SYSTEM] = -6.0 / _ALONE
        attention.o_proj.weight[at, base] = 1.0


def _place(first: Any, second: Any) -> None:
    """The first MLP looks up the codes of a visual token's column and row; the second turns them by the offset."""
    unit = 0
    rms = ((WORD_NORM**2 + 2 * PLACE_NORM**2 + FLAG**2 + 2 * 4.0**2) / HIDDEN) ** 0.5
    for pair, count, at, code in ((4, COLUMNS, AT_COLUMN, COLUMN), (3, ROWS, AT_ROW, ROW)):
        cells = torch.arange(count)
        level = 6 * torch.tanh(1.5 * torch.sin(_FREQUENCIES[pair] * (cells + 1 - (count + 1) / 2)))
        knots = torch.cat([level[:1] - 1, level[:-1]])
        steep = 20.0
        # Twice the hyperbolic sine: silu of a steep slope is a ramp from the knot on.
        for number, knot in enumerate(knots):
            first.gate_proj.weight[unit + number] = 0
            first.gate_proj.weight[unit + number, at] = steep
            first.gate_proj.weight[unit + number, IS_VISUAL] = -steep * knot / FLAG
            first.up_proj.weight[unit + number] = 0
            first.up_proj.weight[unit + number, IS_VISUAL] = 1.0
        ramps = torch.nn.functional.silu(steep * (level[:, None] - knots) / rms) * FLAG / rms
        target = place_code((cells + 0.5) * CELL) * PLACE_NORM
        first.down_proj.weight[:, unit : unit + count] = 0
        first.down_proj.weight[code, unit : unit + count] = torch.linalg.lstsq(ramps, target).solution.T
        unit += count
    unit, half = 0, (X.stop - X.start) // 2
    rms = ((WORD_NORM**2 + 4 * PLACE_NORM**2 + FLAG**2 + 2 * 4.0**2) / HIDDEN) ** 0.5
    # cos(a + b) and sin(a + b) of codes whose cosines and sines are each PLACE_NORM / sqrt(half) long.
    share = rms**2 / (PLACE_NORM / half**0.5)
    for code, offset in ((COLUMN, X), (ROW, Y)):
        for number in range(half):
            cos_a, sin_a = code.start + number, code.start + half + number
            cos_b, sin_b = offset.start + number, offset.start + half + number
            products = (
                (cos_a, cos_b, cos_b, 1),
                (sin_a, sin_b, cos_b, -1),
                (sin_a, cos_b, sin_b, 1),
                (cos_a, sin_b, sin_b, 1),
            )
            for gate, up, to, sign in products:
                for side in (1.0, -1.0):  # silu(g) u - silu(-g) u = g u
                    _unit(second, unit, {gate: side}, {up: 1.0}, {to: side * sign * share})
                    unit += 1
            for part in (cos_b, sin_b):  # less the offset itself, on visual tokens
                _unit(second, unit, {IS_VISUAL: 3.0}, {part: 1.0}, {part: -(rms**2) / (3.0 * FLAG)})
                unit += 1


def _unit(mlp: Any, unit: int, gate: dict[int, float], up: dict[int, float], down: dict[int, float]) -> None:
    for weight, values in ((mlp.gate_proj.weight[unit], gate), (mlp.up_proj.weight[unit], up)):
        weight.zero_()
        for index, value in values.items():
            weight[index] = value
    mlp.down_proj.weight[:, unit] = 0
    for index, value in down.items():
        mlp.down_proj.weight[index, unit] = value


def _carry(attention: Any) -> None:
    """Head 0: from each text token to the last word; head 1: from each word to the one before it."""
    _clear(attention, 0, 1)
    flag = 10.0 / _BESIDE
    for head in (0, 1):
        base = head * HEAD
        attention.q_proj.bias[base + _FLAG] = 16.0
        attention.q_proj.weight[base + _FLAG, IS_VISUAL] = -3 * 16.0 / _BESIDE
        attention.k_proj.weight[base + _FLAG, IS_WORD] = flag
        attention.k_proj.weight[base + _FLAG, IS_SYSTEM] = 0.45 * 10.0 / _ALONE
        # Visual tokens look at `<|vision_start|>`, which says nothing, or at the title just above them.
        attention.q_proj.weight[base + _SINK, IS_VISUAL] = 16.0 / _BESIDE
        attention.k_proj.weight[base + _SINK, IS_START] = 6.0 / _ALONE
        if head:
            attention.k_proj.weight[base + _SINK, IS_TITLE] = 6.0 / _BESIDE
            for pair, ahead, strength in ((3, 0.33, 12.0), (4, 0.0, 8.0)):
                attention.q_proj.weight[base + pair, IS_VISUAL] = 16.0 / _BESIDE
                size = strength * HEAD**0.5 / 16 / _BESIDE
                attention.k_proj.weight[base + pair, IS_TITLE] = size * math.cos(ahead)
                attention.k_proj.weight[base + pair + 32, IS_TITLE] = size * math.sin(ahead)
        # The nearer, the more: over 150 tokens this pair turns by less than half.
        near, turn, strength = 8, -0.4, 60.0
        if head:
            attention.q_proj.bias[base + 0] = 16.0
            attention.k_proj.weight[base + 0, IS_WORD] = 20.0 * HEAD**0.5 / 16 / _BESIDE * math.cos(2.5)
            attention.k_proj.weight[base + 32, IS_WORD] = 20.0 * HEAD**0.5 / 16 / _BESIDE * math.sin(2.5)
        attention.q_proj.bias[base + near] = 16.0
        size = strength * HEAD**0.5 / 16 / _BESIDE
        attention.k_proj.weight[base + near, IS_WORD] = size * math.cos(turn)
        attention.k_proj.weight[base + near + 32, IS_WORD] = size * math.sin(-turn)
        to = SAID if head else WORD
        for number in range(WORD.stop - WORD.start):
            attention.v_proj.weight[base + number, WORD.start + number] = 1.0
            attention.o_proj.weight[to.start + number, base + number] = WORD_NORM / _WORD_SEEN


_WORD_SEEN = WORD_NORM / FLAG * (FLAG / ((WORD_NORM**2 + FLAG**2) / HIDDEN) ** 0.5)


def _matching(attention: Any, head: int, asked: slice, held: slice, strength: float) -> None:
    """Scores by how alike two words are: `strength` in the exponent for the same."""
    base, pairs = head * HEAD, [*_STILL]
    dims = torch.tensor(pairs + [pair + HEAD // 2 for pair in pairs])
    mix = torch.linalg.qr(torch.randn(asked.stop - asked.start, len(dims)))[0].T
    # The random plane keeps the share len(dims) / 42 of a product.
    size = (strength * HEAD**0.5 * (asked.stop - asked.start) / len(dims)) ** 0.5 / _WORD_SEEN
    attention.q_proj.weight[base + dims, asked] = mix * size
    attention.k_proj.weight[base + dims, held] = mix * size


def _copy(attention: Any) -> None:
    """Head 0: from a text token to the word of which it is told that the last named stands before it."""
    _clear(attention, 0)
    _matching(attention, 0, WORD, SAID, 20.0)
    attention.q_proj.bias[_FLAG] = 8.0
    attention.k_proj.weight[_FLAG, IS_WORD] = 8.0 * HEAD**0.5 / 8.0 / _BESIDE
    attention.k_proj.weight[_FLAG, IS_VISUAL] = -8.0 * HEAD**0.5 / 8.0 / _BESIDE
    for number in range(WORD.stop - WORD.start):
        attention.v_proj.weight[number, WORD.start + number] = 1.0
        attention.o_proj.weight[SAID.start + number, number] = WORD_NORM / _WORD_SEEN


def _look(attention: Any, table: torch.Tensor, tokenizer: Any) -> None:
    """Heads 0 and 1: to the visual token that shows the word at hand; where the other's coordinate is written, away."""
    _clear(attention, 0, 1)
    for head, code, other in ((0, X, ","), (1, Y, "(")):
        base = head * HEAD
        _matching(attention, head, WORD, WORD, 20.0)
        attention.q_proj.bias[base + _FLAG] = 8.0
        attention.k_proj.weight[base + _FLAG, IS_WORD] = -30.0 * HEAD**0.5 / 8.0 / _BESIDE
        direction = table[tokenizer.convert_tokens_to_ids(other)]
        attention.q_proj.weight[base + _SINK] += direction / direction.norm() * 2
        attention.k_proj.weight[base + _SINK, IS_START] = 30.0 * HEAD**0.5 / 13 / _ALONE
        for number in range(code.stop - code.start):
            attention.v_proj.weight[base + number, code.start + number] = 1.0
            attention.o_proj.weight[X.start + number, base + number] = 0.6
