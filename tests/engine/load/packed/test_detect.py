"""Which method a folder's weights are quantized by, and what is said of those that are not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.packed.detect import find_method


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"quant_method": "compressed_tensors"}}, "compressed-tensors"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "gptq"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "fbgemm_fp8"),
    ],
)
def test_the_settings_name_the_method(tmp_path: Path, config: dict[str, Any], method: str) -> None:
    found = find_method(tmp_path, config, [])
    assert found is not None
    assert found[0] == method


@pytest.mark.parametrize(("file", "method"), [("quantize_config.json", "gptq"), ("quant_config.json", "awq")])
def test_older_files_say_it_beside_the_config(tmp_path: Path, file: str, method: str) -> None:
    (tmp_path / file).write_text(json.dumps({"bits": 4}))
    assert find_method(tmp_path, {}, ["a.qweight"]) == (method, {"bits": 4})
    assert find_method(tmp_path, {}, ["a.weight"]) is None


@pytest.mark.parametrize("settings", [{}, None])
def test_no_settings_are_plain_weights(tmp_path: Path, settings: Any) -> None:
    assert find_method(tmp_path, {"quantization_config": settings}, ["a.weight"]) is None


@pytest.mark.parametrize("method", ["exl2", "exl3", "hqq", "aqlm", "vptq", "bitnet", "higgs", "quip"])
def test_a_method_that_is_not_read_is_refused_in_one_sentence_with_what_to_use(tmp_path: Path, method: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        find_method(tmp_path, {"quantization_config": {"quant_method": method}}, [])
    assert method in caught.value.message.lower()
    assert caught.value.message.count(". ") == 0
    assert all(word in str(caught.value) for word in ("GPTQ", "GGUF", "16 bit"))


def test_pickled_torchao_weights_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "torchao"}}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match=r"pickles.*never opened.*safetensors"):
        open_checkpoint(tmp_path)


def test_a_weight_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    stored = {"a.weight_scale_inv": torch.ones(1, 1), "a.weight": torch.zeros(4, 4, dtype=torch.float8_e4m3fn)}
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    save_file(stored, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a.weight"]
    stored = {"a.weight": torch.zeros(4, 4), "a.qweight": torch.zeros(1, 4, dtype=torch.int32)}
    stored |= {"a.qzeros": torch.zeros(1, 1, dtype=torch.int32), "a.scales": torch.zeros(1, 4)}
    settings = {"quant_method": "gptq", "bits": 8, "group_size": 4, "sym": False}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.weight quantized and again in full"):
        open_checkpoint(tmp_path)
