"""A byte-level BPE tokenizer with Qwen2.5-VL's special tokens and chat template, trained from a small corpus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# In the order, and with the special flag, of Qwen2.5-VL's own tokenizer.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# Qwen2.5-VL's template, word for word: Continuous Token relies on `<|im_end|>\n` closing every turn.
CHAT_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A word keeps the punctuation that touches it, so that `click(start_box='` may become one token and a reply stays
# short; digits never join a word; a newline is a token of its own, as Continuous Token's boundary handling asks.
_PRETOKENIZE = r"\p{N}{1,3}| ?[^\s\p{N}]+|\s"
_SPECIAL_PATTERN = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))
_DIGITS = re.compile(r"\d+")


def train_tokenizer(corpus: Iterable[str], *, max_words: int = 900, max_number: int = 511) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `corpus`; the same corpus in the same order gives the same vocabulary.

    Every number from 0 to `max_number` is one token: a coordinate of the resized screenshot is one choice of the
    policy, not two or three.

    Args:
        corpus: any texts; special tokens and digits in them are left out of the training.
        max_words: bound on the learned byte-level vocabulary, the 256 bytes included.
        max_number: the largest number that is one token, below 1000.

    Returns:
        A fast tokenizer with `<|im_end|>` as end and `<|endoftext|>` as padding.
    """
    from transformers import PreTrainedTokenizerFast

    trainer = trainers.BpeTrainer(
        vocab_size=max_words,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = _with_pipeline(Tokenizer(models.BPE()))
    words.train_from_iterator(_plain_texts(corpus), trainer=trainer)
    learned = json.loads(words.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    vocab = _add_numbers(dict(learned["vocab"]), merges, max_number)
    tokenizer = _with_pipeline(Tokenizer(models.BPE(vocab=vocab, merges=merges)))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|endoftext|>", "<|im_end|>")],
        chat_template=CHAT_TEMPLATE,
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
    )


def _with_pipeline(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRETOKENIZE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _plain_texts(corpus: Iterable[str]) -> Iterator[str]:
    for text in corpus:
        for part in _SPECIAL_PATTERN.split(text):
            yield _DIGITS.sub("\n", part)


def _add_numbers(vocab: dict[str, int], merges: list[tuple[str, str]], max_number: int) -> dict[str, int]:
    """Append all two-digit strings and the three-digit numbers up to `max_number`, with the merges that reach them."""
    pairs = [f"{n:02d}" for n in range(100)]
    for pair in pairs:
        vocab.setdefault(pair, len(vocab))
        merges.append((pair[0], pair[1]))
    for n in range(100, max_number + 1):
        number = str(n)
        vocab.setdefault(number, len(vocab))
        # Which pair of "312" merges first depends on the pairs' ranks, so both ways on must exist.
        merges.extend([(number[:2], number[2]), (number[0], number[1:])])
    return vocab
