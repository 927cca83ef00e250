"""A GGUF model whose weights stay in their blocks computes what the expanded one does, in a fraction of the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.load.gguf_types import GGML_TYPES
from octavo.engine.model.build import build_model
from octavo.engine.quant.base import LinearSpec, Packed, Part
from octavo.engine.quant.blocks import BlockFormat, block_format

HIDDEN, INNER, VOCAB = 256, 512, 48
METADATA: dict[str, Any] = {
    ".context_length": 64,
    ".embedding_length": HIDDEN,
    ".block_count": 2,
    ".feed_forward_length": INNER,
    ".attention.head_count": 4,
    ".attention.head_count_kv": 2,
    ".attention.layer_norm_rms_epsilon": 1e-5,
    ".rope.dimension_count": 64,
    ".rope.freq_base": 10000.0,
}
_BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
# The float16 scales of a block, and 8-bit ones.
_HALVES = {"Q4_K": (0, 2), "Q6_K": (208,), "Q5_0": (0,), "Q8_0": (0,), "IQ4_XS": (0,)}


def blocks(
    rng: np.random.Generator, name: str, rows: int, columns: int
) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Random blocks with small scales."""
    kind = _BY_NAME[name]
    data = rng.integers(0, 256, (rows * columns // kind.block_size, kind.block_bytes), dtype=np.uint8)
    for start in _HALVES[name]:
        scale = rng.uniform(0.5e-4, 1e-4, (len(data), 1)).astype(np.float16)
        data[:, start : start + 2] = scale.view(np.uint8)
    return data.reshape(rows, -1), gguf.GGMLQuantizationType(kind.number)


@pytest.fixture
def mixed(write_gguf: Callable[..., Path]) -> Path:
    """As Q4_K_M files are: value rows and some others have more bits."""
    rng = np.random.default_rng(5)
    tensors: dict[str, Any] = {"token_embd.weight": blocks(rng, "Q8_0", VOCAB, HIDDEN)}
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(2):
        name = f"blk.{layer}."
        tensors[name + "attn_norm.weight"] = tensors[name + "ffn_norm.weight"] = np.ones(HIDDEN, np.float32)
        tensors[name + "attn_q.weight"] = blocks(rng, "Q4_K", HIDDEN, HIDDEN)
        tensors[name + "attn_k.weight"] = blocks(rng, "Q4_K", HIDDEN // 2, HIDDEN)
        tensors[name + "attn_v.weight"] = blocks(rng, "Q6_K", HIDDEN // 2, HIDDEN)
        tensors[name + "attn_output.weight"] = blocks(rng, "IQ4_XS", HIDDEN, HIDDEN)
        tensors[name + "ffn_gate.weight"] = blocks(rng, "Q4_K", INNER, HIDDEN)
        tensors[name + "ffn_up.weight"] = blocks(rng, "Q4_K", INNER, HIDDEN)
        tensors[name + "ffn_down.weight"] = blocks(rng, "Q5_0", HIDDEN, INNER)
    return write_gguf("llama", METADATA, tensors)


def build(path: Path, **options: Any) -> Any:
    settings = {"device": "cpu", "dtype": torch.float32, "context_length": 32, "fusion": True, "quantization": "packed"}
    with open_checkpoint(path) as checkpoint:
        return build_model(checkpoint, **settings | options)


def linears(model: Any) -> list[Any]:
    layers = model.weights.layers
    return [*(ref for layer in layers for ref in (*layer.qkv, layer.o, *layer.gate_up, layer.down)), model.weights.head]


@pytest.mark.parametrize("fusion", [True, False])
def test_packed_weights_are_those_of_the_expanded_model_to_the_bit(mixed: Path, fusion: bool) -> None:
    packed, plain = build(mixed, fusion=fusion), build(mixed, fusion=fusion, quantization="none")
    generator = torch.Generator().manual_seed(0)
    for one, other in zip(linears(packed), linears(plain), strict=True):
        assert torch.equal(one.format.dequantize(one.acquire()), other.format.dequantize(other.acquire()))
        x = torch.randn(3, one.spec.in_dim, generator=generator)
        torch.testing.assert_close(one(x), other(x))
    ids = torch.tensor([5, 0, 5])
    assert torch.equal(packed.weights.embed.rows(ids), plain.weights.embed.rows(ids))
    assert packed.weight_bytes < 0.2 * plain.weight_bytes


def test_a_merged_linear_keeps_each_parts_own_format(mixed: Path) -> None:
    layer = build(mixed).weights.layers[0]
    (qkv,) = layer.qkv
    assert [piece.name for piece in qkv.format.pieces] == ["Q4_K", "Q6_K"]
    assert qkv.format.counts == (2, 1)
    assert layer.gate_up[0].format == BlockFormat("Q4_K")


def test_without_kernels_weights_are_expanded_unless_they_would_not_fit(mixed: Path) -> None:
    roomy = build(mixed, quantization="none", free_bytes=1 << 30)
    tight = build(mixed, quantization="none", free_bytes=1 << 20)
    assert roomy.weights.head.format.name == "none"
    assert roomy.notices == ()
    assert tight.weights.head.format.name == "Q8_0"
    (notice,) = tight.notices
    assert "stay packed" in notice
    assert "slower" in notice


def test_packed_weights_can_be_rounded_to_another_format(mixed: Path) -> None:
    model = build(mixed, quantization="int8")
    assert model.weights.layers[0].qkv[0].format.name == "int8"
    exact = build(mixed, quantization="none").weights.layers[0].down
    down = model.weights.layers[0].down
    wanted = exact.format.dequantize(exact.acquire())
    torch.testing.assert_close(
        down.format.dequantize(down.acquire()), wanted, rtol=0, atol=float(wanted.abs().max()) / 250
    )


def test_experts_stay_packed_and_multiply_each_their_own_rows() -> None:
    spec = LinearSpec("down", (Part("down", 6),), in_dim=256, experts=3)
    form = BlockFormat("Q4_K")
    data = [torch.from_numpy(blocks(np.random.default_rng(e), "Q4_K", 6, 256)[0]) for e in range(3)]
    packed = form.allocate(spec, torch.float32, torch.device("cpu"))
    for expert, rows in enumerate(data):
        form.pack(packed, spec, {"blocks": rows}, expert=expert)
    x = torch.randn(5, 256)
    result = form.linear_grouped(x, packed, torch.tensor([2, 2, 5], dtype=torch.int32))
    whole = form.dequantize(packed)
    torch.testing.assert_close(result, torch.cat((x[:2] @ whole[0].T, x[2:] @ whole[2].T)))
    alone = Packed({"blocks": data[1]}, None, 256)
    assert torch.equal(form.dequantize(alone), whole[1])


def test_what_is_no_block_or_does_not_fill_one_is_not_kept_packed() -> None:
    assert block_format("F16", (8, 256)) is None
    assert block_format("Q4_K", (8, 128)) is None
    assert block_format("Q8_0", (256,)) is None
    assert block_format("Q8_0", (4, 8, 64)) == BlockFormat("Q8_0")
