"""A tiny llama whose linears a test quantizes its own way, written as a folder and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo.engine.load.checkpoint import Checkpoint, open_checkpoint
from octavo.engine.model.build import build_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}

# (name of a module, its weight [out, in]) -> (tensors by role, the weight they stand for)
Quantize = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Written:
    """A folder, and what each quantized weight in it stands for."""

    folder: Path
    meant: dict[str, Tensor]

    def open(self) -> Checkpoint:
        return open_checkpoint(self.folder)

    def build(self, **options: Any) -> Any:
        settings = {"device": "cpu", "dtype": torch.float32, "context_length": 32, "fusion": True}
        with self.open() as checkpoint:
            return build_model(checkpoint, **{"quantization": "packed"} | settings | options)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Written]:
    """write(quantize, settings): every linear of the layers quantized; `joined` puts what stands between a module's
    name and a role."""

    def make(
        quantize: Quantize,
        settings: Mapping[str, Any] | None,
        *,
        joined: str = ".",
        metadata: dict[str, str] | None = None,
        seed: int = 0,
        also: tuple[str, ...] = (),
        **config: Any,
    ) -> Written:
        import transformers

        torch.manual_seed(seed)
        full = CONFIG | config
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**full))
        tensors, meant = {}, {}
        for name, weight in one_by_one(model.state_dict()):
            if not name.endswith(".weight") or ("_proj." not in name and name.split(".")[-2] not in also):
                tensors[name] = weight.clone()
                continue
            module = name.removesuffix(".weight")
            parts, meant[name] = quantize(module, weight.detach().clone() * 5)
            for role, tensor in parts.items():
                tensors[module + joined + role] = tensor.contiguous().clone()
        folder = tmp_path / f"model-{seed}"
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors", metadata)
        if settings is not None:
            full["quantization_config"] = dict(settings)
        (folder / "config.json").write_text(json.dumps(full), encoding="utf-8")
        return Written(folder, meant)

    return make


def one_by_one(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights with each expert's by themselves, as quantized checkpoints hold them."""
    for name, tensor in state.items():
        stack, _, part = name.rpartition(".")
        if part not in ("gate_up_proj", "down_proj") or tensor.ndim != 3:
            yield name, tensor
            continue
        for expert, matrix in enumerate(tensor):
            pieces = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if part == "gate_up_proj" else [(part, matrix)]
            for piece, rows in pieces:
                yield f"{stack}.{expert}.{piece}.weight", rows


@pytest.fixture
def check() -> Callable[..., Any]:
    """check(written): every weight decodes to the bit to what it means, expanded or kept packed, alone or merged, and
    the packed model multiplies by it. Returns the packed model."""

    def run(written: Written, *, held: bool = True, close: float = 1e-5) -> Any:
        with written.open() as checkpoint:
            assert "quantization_config" not in checkpoint.config
            for name, weight in written.meant.items():
                assert torch.equal(checkpoint.read(name).to(weight.dtype), weight), name
                assert checkpoint.tensors[name].shape == tuple(weight.shape)
        packed, plain = written.build(), written.build(quantization="none")
        generator = torch.Generator().manual_seed(1)
        for mine, full in zip(packed.weights.layers, plain.weights.layers):
            pairs = [(mine.o, full.o), (mine.down, full.down)]
            pairs += [*zip(mine.qkv, full.qkv), *zip(mine.gate_up, full.gate_up)]
            for one, other in pairs:
                assert (one.format.name == "none") != held
                wanted = other.format.dequantize(other.acquire())
                assert torch.equal(one.format.dequantize(one.acquire()), wanted)
                x = torch.randn(3, one.spec.in_dim, generator=generator)
                product = x.double() @ wanted.double().T
                assert float((one(x).double() - product).norm() / product.norm()) < close
        return packed

    return run
