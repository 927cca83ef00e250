"""Weights rounded at load are found again by the checkpoint's content, and never used where they do not belong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from octavo.engine.load import rounded_cache
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.rounded_cache import RoundedCache, fingerprint
from octavo.engine.load.safetensors_write import write_safetensors
from octavo.engine.model.build import build_model

CONFIG = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(write_safetensors: Callable[..., Path]) -> Path:
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG))
    return write_safetensors([{name: t.clone() for name, t in model.state_dict().items()}], config=CONFIG)


def load(folder: Path, cache: RoundedCache | None, **options: Any) -> tuple[Any, list[str]]:
    """The model, and the names of the tensors that were read for it."""
    with open_checkpoint(folder) as checkpoint:
        seen: list[str] = []
        stream = checkpoint.stream

        def counted(*args: Any, **options: Any) -> Any:
            for name, tensor in stream(*args, **options):
                seen.append(name)
                yield name, tensor

        checkpoint.stream = counted  # type: ignore[method-assign]
        settings = {
            "device": "cpu",
            "dtype": torch.float32,
            "context_length": 32,
            "fusion": True,
            "quantization": "int4",
        }
        return build_model(checkpoint, rounded=cache, **settings | options), seen


def weights(model: Any) -> list[torch.Tensor]:
    return [
        ref.format.dequantize(ref.acquire()) for ref in (model.weights.layers[1].qkv[0], model.weights.layers[0].down)
    ]


def test_the_second_load_reads_only_what_is_not_rounded_and_gives_the_same(folder: Path, tmp_path: Path) -> None:
    cache = RoundedCache(tmp_path / "rounded")
    first, all_names = load(folder, cache)
    second, names = load(folder, cache)
    assert len(all_names) == len(set(all_names)) == 21
    assert sorted(names) == sorted(n for n in all_names if "proj" not in n)
    for one, other in zip(weights(first), weights(second)):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "changes", [{"quantization": "int8"}, {"dtype": torch.bfloat16}, {"fusion": False}, {"quantize_head": True}]
)
def test_another_way_of_holding_them_is_another_file(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    cache = RoundedCache(tmp_path / "rounded")
    load(folder, cache)
    _, names = load(folder, cache, **changes)
    assert len(names) == 21
    assert len(list((tmp_path / "rounded").iterdir())) == 2


def test_rows_in_another_order_are_another_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU wants the rows of queries and keys in an order that a GPU does not."""
    cache = RoundedCache(tmp_path / "rounded")
    load(folder, cache)
    monkeypatch.setattr("octavo.engine.model.ops_cpu.CpuOps.interleaved_rope", False)
    _, names = load(folder, cache)
    assert len(names) == 21


def test_unrounded_models_leave_nothing(folder: Path, tmp_path: Path) -> None:
    load(folder, RoundedCache(tmp_path / "rounded"), quantization="none")
    assert not (tmp_path / "rounded").exists()


def test_a_damaged_file_is_made_again(folder: Path, tmp_path: Path) -> None:
    cache = RoundedCache(tmp_path / "rounded")
    first, _ = load(folder, cache)
    (file,) = (tmp_path / "rounded").iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-8], b"", b"\0" * 8, whole.replace(b"codes", b"kodes")):
        file.write_bytes(damaged)
        model, names = load(folder, cache)
        assert len(names) == 21
        assert torch.equal(weights(model)[0], weights(first)[0])
        assert file.read_bytes() == whole


def test_a_changed_checkpoint_is_another(folder: Path) -> None:
    file = folder / "model.safetensors"
    before = fingerprint([file])
    assert fingerprint([file]) == before
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    assert fingerprint([file]) != before


def test_the_oldest_go_when_the_disk_is_full_and_what_never_fits_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = RoundedCache(tmp_path / "rounded")
    load(folder, cache)
    (oldest,) = (tmp_path / "rounded").iterdir()
    size = oldest.stat().st_size
    os.utime(oldest, (1, 1))

    def disk(free: int) -> None:
        monkeypatch.setattr(rounded_cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))

    disk(int(size * 7 / rounded_cache.SHARE_OF_DISK) // 5)
    load(folder, cache, quantization="int4-symmetric")
    (newest,) = (tmp_path / "rounded").iterdir()
    assert newest != oldest
    disk(0)
    load(folder, cache, quantization="int8")
    assert list((tmp_path / "rounded").iterdir()) == [newest]


def test_files_are_safetensors_that_other_programs_read(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.arange(7, dtype=torch.uint8),
        "c": torch.randn(4).to(torch.float8_e4m3fn),
    }
    entries = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
    write_safetensors(tmp_path / "x.safetensors", entries, tensors.items(), {"made": "here"})
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name].float(), t.float()) for name, t in tensors.items())
    with pytest.raises(ValueError, match="b came where a was"):
        write_safetensors(tmp_path / "x.safetensors", entries, [("b", tensors["b"])])
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
