"""Makes a small Qwen2.5-VL with tokenizer and processor on this machine: no model hub is asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.lib.files import replacing_directory

from .architecture import MAX_PIXELS, MERGE_SIZE, MIN_PIXELS, PATCH_SIZE, PolicySize, qwen_config
from .tokenizer import CHAT_TEMPLATE, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

_GRAMMAR_EXAMPLES = (
    "You are a GUI agent. You are given a task and screenshots. Reply with the next action.",
    "## Output Format\nThought: ...\nAction: ...\n## Action Space\n",
    "system\nYou are a helpful assistant.",
    "user\n",
    "assistant\n",
    "Thought: I click the button.\nAction: click(start_box='<|box_start|>(182,101)<|box_end|>')",
    "Thought: I open it.\nAction: left_double(start_box='<|box_start|>(20,34)<|box_end|>')",
    "Thought: I open the menu.\nAction: right_single(start_box='<|box_start|>(20,34)<|box_end|>')",
    "Thought: Drag.\nAction: drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='<|box_start|>(3,4)<|box_end|>')",
    "Thought: I press the keys.\nAction: hotkey(key='ctrl s')",
    "Thought: I type the text.\nAction: type(content='report\\n')",
    "Thought: I scroll down.\nAction: scroll(start_box='<|box_start|>(182,126)<|box_end|>', direction='down')",
    "Thought: I wait for the window.\nAction: wait()",
    "Thought: The task is done.\nAction: finished(content='')",
    "Thought: The task cannot be done.\nAction: call_user()",
)


def default_corpus() -> list[str]:
    """Texts of the action grammar, enough for a tokenizer where no tasks are at hand."""
    # Each text twice: a pair must be seen twice to be merged.
    return [text for text in _GRAMMAR_EXAMPLES for _ in range(2)]


def corpus_tokenizer(corpus: Iterable[str]) -> PreTrainedTokenizerBase:
    """Train the tokenizer on the action grammar and `corpus`."""
    return train_tokenizer([*default_corpus(), *corpus])


def build_policy(
    out_dir: Path | str, *, seed: int = 0, corpus: Iterable[str] | None = None, size: PolicySize | None = None
) -> Path:
    """Write a small Qwen2.5-VL with random weights, its tokenizer and processor, in Hugging Face's format.

    Args:
        out_dir: the folder to write; replaced as a whole when it exists, never left half written.
        seed: of the weights; the same seed, corpus and size give the same bytes on the same torch version.
        corpus: texts to train the tokenizer on beside the action grammar's.
        size: sizes of the towers; None takes `PolicySize()`.

    Returns:
        `out_dir`, loadable with `AutoTokenizer`, `AutoProcessor`, `AutoConfig` and `AutoModelForImageTextToText`.
    """
    out_dir = Path(out_dir)
    tokenizer = corpus_tokenizer(corpus or ())
    with replacing_directory(out_dir) as scratch:
        save_policy(scratch, random_model(tokenizer, seed, size or PolicySize()), build_processor(tokenizer))
    return out_dir


def random_model(tokenizer: PreTrainedTokenizerBase, seed: int, size: PolicySize) -> Qwen2_5_VLForConditionalGeneration:
    """Make the model with weights drawn from `seed`; torch's global random state is left as it was."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(qwen_config(size, tokenizer))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = tokenizer.pad_token_id
    return model


def build_processor(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLProcessor:
    """Put the image and video processors with this project's pixel limits around `tokenizer`."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    patches = {"patch_size": PATCH_SIZE, "temporal_patch_size": 2, "merge_size": MERGE_SIZE}

    # A fresh dict for each: without `size` the processors write the limits into their class's shared default.
    def limits() -> dict[str, int]:
        return {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}

    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=limits(), **patches),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=limits(), **patches),
        chat_template=CHAT_TEMPLATE,
    )


def save_policy(directory: Path, model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor) -> None:
    """Write weights, config, tokenizer and processor into `directory`."""
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    processor.tokenizer.save_pretrained(directory)
