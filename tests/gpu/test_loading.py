"""What is loaded onto a GPU, by queued copies from page-locked memory, has the bits of what is loaded on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.engine import sending
from octavo.engine.load import safetensors_checkpoint
from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.rounded_cache import RoundedCache
from octavo.engine.model.build import build_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=4000, hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, attention_bias=True,
    )  # fmt: skip
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    model = transformers.LlamaForCausalLM(config)
    for bias in (parameter for name, parameter in model.named_parameters() if name.endswith("bias")):
        bias.data.normal_()
    model.save_pretrained(path, max_shard_size="20MB")
    return path


def load(path: Path, device: str, **options: Any) -> Any:
    with open_checkpoint(path) as checkpoint:
        settings: dict[str, Any] = {"dtype": torch.bfloat16, "context_length": 64, "fusion": True}
        return build_model(checkpoint, device=device, **settings | options)


def planes(model: Any) -> dict[str, torch.Tensor]:
    weights = model.weights
    found = {
        f"{ref.spec.name}.{name}": plane for ref in weights._refs() for name, plane in ref.acquire().planes.items()
    }
    found |= {f"{ref.spec.name}.bias": ref.acquire().bias for ref in weights._refs() if ref.acquire().bias is not None}
    return {name: plane.cpu() for name, plane in (found | weights._vectors).items()}


@pytest.fixture(params=["roomy", "cramped", "pageable"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How much page-locked memory there is: for all; for few tensors at a time; for pieces alone."""
    if request.param != "roomy":
        monkeypatch.setattr(sending, "PIECE_BYTES", 100_000)
        monkeypatch.setattr("octavo.engine.model.fill.QUEUED_BYTES", 1 << 20)
        monkeypatch.setattr(safetensors_checkpoint, "AHEAD_BYTES", 1 << 20)
    if request.param == "pageable":
        monkeypatch.setattr(sending, "PINNED_BYTES", 0)
    return request.param


@pytest.mark.parametrize("fusion", [True, False], ids=["merged", "parts"])
def test_the_bits_of_a_model_are_those_of_the_file(folder: Path, memory: str, fusion: bool) -> None:
    expected = planes(load(folder, "cpu", fusion=False))
    got = planes(load(folder, "cuda", fusion=fusion))
    if fusion:  # rows in the order in which they rotate, and joined: the same sums say that the same rows are there
        wide = {name: plane.double().sum() for name, plane in got.items()}
        assert sum(wide.values()) == pytest.approx(sum(plane.double().sum() for plane in expected.values()), abs=1e-6)
        alike = [name for name in got if name in expected and got[name].shape == expected[name].shape]
        assert len(alike) >= 12
    else:
        assert got.keys() == expected.keys()
        alike = list(got)
    for name in alike:
        assert torch.equal(got[name], expected[name]), name


def test_rounded_weights_come_back_from_their_cache_as_they_were_made(
    folder: Path, memory: str, tmp_path: Path
) -> None:
    made = planes(load(folder, "cuda", quantization="int4", rounded=RoundedCache(tmp_path)))
    again = planes(load(folder, "cuda", quantization="int4", rounded=RoundedCache(tmp_path)))
    assert len(list(tmp_path.iterdir())) == 1
    assert made.keys() == again.keys()
    for name, plane in made.items():
        assert torch.equal(plane, again[name]), name


def test_no_page_locked_memory_stays_behind(folder: Path) -> None:
    if not hasattr(torch.accelerator, "empty_host_cache"):
        pytest.skip("this torch does not give it back when asked")
    torch.accelerator.empty_host_cache()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    load(folder, "cuda")
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] <= before
