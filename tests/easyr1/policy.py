"""A shipped policy in the form of the Transformers that EasyR1 takes: the package's own are files of Transformers 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arpo_verl.tools.policy.shipped import write_shipped


def write_policy(name: str, folder: Path) -> None:
    """Write a shipped policy, `embedded` or `seeing`, for Transformers 4.54 to 4.57 into a new folder."""
    write_shipped(name, folder)
    config, tokenizer = _read(folder / "config.json"), _read(folder / "tokenizer_config.json")
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope["rope_theta"]
    text["rope_scaling"] = {"type": "mrope", "rope_type": "default", "mrope_section": rope["mrope_section"]}
    _write(folder / "config.json", {**config, "torch_dtype": config["dtype"]})
    tokenizer |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    _write(folder / "tokenizer_config.json", tokenizer)
    processor = _read(folder / "processor_config.json")
    _write(
        folder / "preprocessor_config.json", {**processor["image_processor"], "processor_class": "Qwen2_5_VLProcessor"}
    )
    _write(folder / "processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})


def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def _write(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values, indent=1), "utf-8")
