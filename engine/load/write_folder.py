"""What stands beside the weights of a written checkpoint: configuration, tokenizer, chat template, index.

From a folder its files are copied; from a GGUF file they are made of what it carries.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from octavo.engine.load.checkpoint import Checkpoint
from octavo.engine.load.safetensors_header import read_header

_COPIED = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
)
_INDEX = "model.safetensors.index.json"
BESIDE = (*_COPIED, "config.json", _INDEX)  # all that may stand beside the weights


def shard_name(number: int, count: int) -> str:
    """The name of the weight file `number` of `count`, counted from one."""
    return f"model-{number:05}-of-{count:05}.safetensors"


def write_beside(checkpoint: Checkpoint, folder: Path, quantization: Mapping[str, Any], dtype: torch.dtype) -> None:
    """config.json, generation_config.json and the tokenizer's files of a quantized copy whose plain weights are in
    `dtype`. Raises OSError, and CheckpointError for a tokenizer that is not there."""
    name = str(dtype).removeprefix("torch.")
    config = {key: value for key, value in checkpoint.config.items() if key not in ("dtype", "torch_dtype")}
    write_json(folder / "config.json", config | {"torch_dtype": name, "quantization_config": dict(quantization)})
    if checkpoint.kind == "safetensors":
        for file in _COPIED:
            if (checkpoint.path / file).is_file():
                shutil.copyfile(checkpoint.path / file, folder / file)
        return
    if checkpoint.generation_config:
        write_json(folder / "generation_config.json", checkpoint.generation_config)
    checkpoint.load_tokenizer().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    # a name that every reader knows for "whatever tokenizer.json says"
    write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "PreTrainedTokenizerFast"})


def write_index(folder: Path) -> int:
    """The index of all weight files of a folder; returns the bytes of their tensors."""
    places, total = {}, 0
    for file in sorted(folder.glob("*.safetensors")):
        for name, stored in read_header(file).items():
            places[name] = file.name
            total += stored.size_bytes
    write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))})
    return total


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Puts a JSON file into place when it is whole."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
