"""The tokenizer of a folder: local files only, in UTF-8 with or without a byte order mark, and no code of its own."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.checkpoint import open_checkpoint


@pytest.fixture
def folder(write_safetensors: Callable[..., Path]) -> Path:
    path = write_safetensors([{"w": torch.ones(1)}], {"model_type": "llama"}, folder="Ünï тест 山/a b")
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *pre_tokenizers.ByteLevel.alphabet()])}
    backend = Tokenizer(BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{{ messages[0].content }} – 山"
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("marked", [(), ("tokenizer_config.json",), ("tokenizer.json", "config.json")])
def test_files_are_read_with_and_without_a_byte_order_mark(folder: Path, marked: tuple[str, ...]) -> None:
    for name in marked:
        (folder / name).write_bytes(codecs.BOM_UTF8 + (folder / name).read_bytes())
    with open_checkpoint(folder) as checkpoint:
        tokenizer = checkpoint.load_tokenizer()
    assert tokenizer.decode(tokenizer.encode("тест 山 a")) == "тест 山 a"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x – 山"
    assert tokenizer.eos_token_id == 1


def test_a_folder_without_a_tokenizer_says_so(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with open_checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match="has no tokenizer"):
        checkpoint.load_tokenizer()


def test_a_broken_tokenizer_is_one_sentence(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with open_checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match="cannot be read") as caught:
        checkpoint.load_tokenizer()
    assert "\n" not in str(caught.value)


def test_code_in_the_folder_is_not_run(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "own.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n", encoding="utf-8"
    )
    # Refusing such a tokenizer and doing without its code are both right.
    with open_checkpoint(folder) as checkpoint, contextlib.suppress(UnsupportedModelError):
        checkpoint.load_tokenizer()
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("rope", [{"rope_type": "yarn"}, {"rope_type": "llama3", "factor": 8.0}])
def test_rope_settings_without_their_numbers_are_no_fault_of_the_tokenizer(
    folder: Path, rope: dict[str, object]
) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "rope_scaling": rope}), encoding="utf-8")
    with (
        open_checkpoint(folder) as checkpoint,
        pytest.raises(CheckpointError, match=r"config\.json of a b is not") as caught,
    ):
        checkpoint.load_tokenizer()
    assert "tokenizer" not in str(caught.value)
    assert "factor" in str(caught.value)
    assert caught.value.file == str(folder / "config.json")
