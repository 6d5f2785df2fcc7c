"""Export a saved store for supervised fine-tuning: a conversation for each row, its screenshots as files.

Sources: LLaMA-Factory, data/README.md (sharegpt, with images); TRL, docs/source/dataset_formats.md (vision datasets).
TRL takes what `datasets` loads, here a folder of images with metadata.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from arpo_verl.errors import ReplayError
from arpo_verl.replay.store.persistence import read_manifest, read_records, read_screenshot
from arpo_verl.replay.store.record import decode_record
from arpo_verl.replay.store.screenshots import as_png
from arpo_verl.replay.trajectory import StoredRow, StoredTrajectory

_END, _IMAGE, _PAD = "<|im_end|>", "<|image_pad|>", "<|endoftext|>"
_TURN = re.compile(r"<\|im_start\|>(\w{1,20})\n(.*?)<\|im_end\|>\n?", re.DOTALL)
_SCREENSHOT = re.compile(r"<\|vision_start\|><\|image_pad\|><\|vision_end\|>")
_MARK = re.compile(r"<\|(?:im_start|im_end|image_pad|video_pad|vision_start|vision_end|vision_pad)\|>")
# LLaMA-Factory replaces these by files, even in a model's text.
_SHAREGPT_MARK = re.compile(r"<(?:image|video|audio)>")
_SHAREGPT_ROLES = {"user": "human", "assistant": "gpt"}
_IMAGES = "images"


class Tokenizer(Protocol):
    """A policy's tokenizer, with the methods of transformers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def convert_tokens_to_ids(self, tokens: str) -> Any: ...


class _Turn(NamedTuple):
    """One turn of a conversation."""

    role: str
    parts: tuple[str | None, ...]
    """Its texts; None marks the place of a screenshot."""


class _Form(NamedTuple):
    file: str
    example: Callable[[Sequence[_Turn], Sequence[str]], dict[str, Any]]
    """(messages, names of their images) -> a line. Raises `ReplayError` if the format cannot contain them."""
    description: Mapping[str, Any] | None = None
    """The file's entry in `dataset_info.json`; None if the format has no such file."""


@dataclass(frozen=True)
class Exported:
    """Counts what became of a store's trajectories."""

    examples: int
    """Number of rows, each of which is an example."""
    left_out: Mapping[str, int]
    """Number of trajectories that were left out, by reason."""


def export_sft(folder: Path, out: Path, tokenizer: Tokenizer, form: str) -> Exported:
    """Write a store's successes as data to fine-tune on.

    Args:
        folder: the store's folder.
        out: a folder for the data, and for the screenshots in `images/`, each once.
        tokenizer: the tokenizer of the policy that made the store.
        form: one of `FORMS`.

    Raises:
        ReplayError: there is no store, it is damaged, or no trajectory fits the format.
        OSError: the disk refuses.
    """
    chosen = FORMS[form]
    (out / _IMAGES).mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for _, record in list(read_records(folder, read_manifest(folder))):  # reads all first: it may be damaged
        trajectory = decode_record(record.record, lambda name: read_screenshot(folder, name))
        names = [f"{_IMAGES}/{Path(stored).stem}.png" for stored in record.screenshots]
        try:
            lines += _examples(trajectory, names, tokenizer, chosen)
        except ReplayError as error:
            left_out[str(error)] += 1
            continue
        for name, screenshot in zip(names, trajectory.screenshots, strict=True):
            (out / name).write_bytes(as_png(screenshot))
    if not lines:
        raise ReplayError(f"the store {folder} must have a success that fits the format {form}: {dict(left_out)}")
    (out / chosen.file).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if chosen.description is not None:
        described = {"replay": {"file_name": chosen.file, **chosen.description}}
        (out / "dataset_info.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return Exported(len(lines), left_out)


def _examples(
    trajectory: StoredTrajectory, names: Sequence[str], tokenizer: Tokenizer, form: _Form
) -> list[dict[str, Any]]:
    examples = []
    for row in trajectory.each_row():
        messages, shown = _messages(row, tokenizer), [names[number] for number in row.screenshots]
        if sum(part is None for message in messages for part in message.parts) != len(shown):
            raise ReplayError("a row does not show as many screenshots as its tokens have places for")
        examples.append({"task_id": trajectory.task_id, **form.example(messages, shown)})
    return examples


def _messages(row: StoredRow, tokenizer: Tokenizer) -> list[_Turn]:
    """Read a row's turns back from its tokens.

    Raises:
        ReplayError: they are not a chat of the Qwen-VL family, or a text would be taken for a turn or a screenshot.
    """
    text = "".join(_texts(row, tokenizer))
    if not text.endswith(_END):
        text += _END
    messages: list[_Turn] = []
    end = 0
    for turn in _TURN.finditer(text):
        said = _SCREENSHOT.split(turn[2])
        parts = [part for between in said for part in (between, None)][:-1]
        if turn.start() != end or any(map(_MARK.search, said)):
            break
        messages.append(_Turn(turn[1], tuple(part for part in parts if part != "")))
        end = turn.end()
    if end != len(text) or messages[-1].role != "assistant":
        raise ReplayError("its tokens are not a chat in Qwen-VL's format; is --tokenizer the policy's?")
    return messages


def _texts(row: StoredRow, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the row's text in pieces. Replace the thousand placeholders of a screenshot by one."""
    image = tokenizer.convert_tokens_to_ids(_IMAGE)
    written = [0] * len(row.prompt_ids) + list(row.response_mask)
    tokens = zip(written, [*row.prompt_ids, *row.response_ids], strict=True)
    for is_reply, run in itertools.groupby(tokens, lambda token: token[0]):
        ids = [token_id for _, token_id in run]
        shown = [one for token_id, same in itertools.groupby(ids) for one in ([image] if token_id == image else same)]
        text = tokenizer.decode(shown, skip_special_tokens=False)
        if not is_reply:
            yield text
            continue
        said = text.removesuffix(_END)
        if _MARK.search(said):
            raise ReplayError("a reply contains a token that begins or ends a turn or an image")
        yield said.removesuffix(_PAD) + text[len(said) :]


def _sharegpt(messages: Sequence[_Turn], names: Sequence[str]) -> dict[str, Any]:
    """Format for LLaMA-Factory: a system prompt, then a human and a model in turn."""
    system = "".join(part or "" for part in messages[0].parts) if messages[0].role == "system" else ""
    turns: list[dict[str, str]] = []
    for role, said in itertools.groupby(messages[1 if system else 0 :], lambda message: message.role):
        parts = [part for message in said for part in message.parts]
        if role not in _SHAREGPT_ROLES or any(part and _SHAREGPT_MARK.search(part) for part in parts):
            raise ReplayError(f"the format has no turns of {role}, or a text contains <image>")
        turns.append({"from": _SHAREGPT_ROLES[role], "value": "".join(part or "<image>" for part in parts)})
    if turns[0]["from"] != "human":
        raise ReplayError("a conversation must begin with the user")
    return {"conversations": turns, "system": system, "images": list(names)}


def _openai(messages: Sequence[_Turn], names: Sequence[str]) -> dict[str, Any]:
    """Format for TRL: messages whose content is a list of parts. `datasets` loads the files named as `images`."""
    said = [
        {
            "role": role,
            "content": [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts],
        }
        for role, parts in messages
    ]
    return {"messages": said, "images_file_names": list(names)}


FORMS: Mapping[str, _Form] = {
    "sharegpt": _Form(
        "replay.jsonl",
        _sharegpt,
        {
            "formatting": "sharegpt",
            "columns": {"messages": "conversations", "system": "system", "images": "images"},
        },
    ),
    "openai": _Form("metadata.jsonl", _openai),
}
"""The formats of the data, by their names on the command line."""
