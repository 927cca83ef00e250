"""compressed-tensors: what its own compressors write decodes here to exactly what they decode it to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError, UnsupportedModelError
from octavo.engine.load.packed import compressed
from octavo.engine.quant.dynamic import DynamicInt8Format, Float8Format

ct = pytest.importorskip("compressed_tensors")
_COMPRESSORS = ct.compressors.BaseCompressor
_QUANTIZATION = ct.quantization

Quantize = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]


def scheme(weights: dict[str, Any], activations: dict[str, Any] | None = None) -> Any:
    make = _QUANTIZATION.QuantizationArgs
    return _QUANTIZATION.QuantizationScheme(
        targets=["Linear"], weights=make(**weights), input_activations=make(**activations) if activations else None
    )


def settings(form: str, weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def compressor(form: str, weights: dict[str, Any], scale_dtype: torch.dtype = torch.bfloat16) -> Quantize:
    """The library's own compressor, with scales and zero points chosen here."""
    made = _COMPRESSORS.get_value_from_registry(form)
    arguments = scheme(weights)

    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, columns = weight.shape
        size = weights.get("group_size") or columns
        bits = weights["num_bits"]
        groups = weight.view(rows, -1, size)
        state: dict[str, Tensor] = {"weight": weight}
        if weights["type"] == "float" and bits == 8:
            scale = groups.abs().amax(-1) / 448
        elif weights.get("symmetric", True):
            scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 0.5)
        else:
            low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
            scale = (high - low) / (2**bits - 1)
            zero = -(2 ** (bits - 1)) - (low / scale.to(scale_dtype).float()).round()
            state["weight_zero_point"] = zero.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
        state["weight_scale"] = scale.to(scale_dtype)
        stored = made.compress(state, arguments)
        return stored, made.decompress(stored, arguments)["weight"]

    return quantize


def integers(bits: int, size: int | None, *, symmetric: bool) -> dict[str, Any]:
    strategy = "group" if size else "channel"
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": size}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (4, 64), (8, None), (3, 32), (2, 64)])
def test_packed_integers(write: Any, check: Any, bits: int, size: int | None, symmetric: bool) -> None:
    weights = integers(bits, size, symmetric=symmetric)
    check(write(compressor("pack-quantized", weights), settings("pack-quantized", weights)))


def test_a_width_that_does_not_fill_its_words(write: Any, check: Any) -> None:
    """Hidden size 100: twelve and a half words of 4-bit codes a row."""
    weights = integers(4, None, symmetric=True)
    check(
        write(
            compressor("pack-quantized", weights),
            settings("pack-quantized", weights),
            hidden_size=100,
            intermediate_size=60,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=26,
        )
    )


def test_columns_in_the_order_of_activations(write: Any, check: Any) -> None:
    weights = integers(4, 32, symmetric=True) | {"actorder": "group"}
    plain = compressor("pack-quantized", integers(4, 32, symmetric=True))

    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(len(module)))
        # scales of groups of columns that do not lie together: quantized side by side, then put back
        stored, meant = plain(module, weight[:, order])
        groups = torch.empty(weight.shape[1], dtype=torch.int32)
        groups[order] = (torch.arange(weight.shape[1]) // 32).int()
        codes = compressed.unpack_words(stored["weight_packed"], 4)
        back = torch.empty_like(codes)
        back[:, order] = codes
        lanes = back.view(*back.shape[:-1], -1, 8).long() << (4 * torch.arange(8))
        words = lanes.sum(-1)
        stored["weight_packed"] = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
        restored = torch.empty_like(meant)
        restored[:, order] = meant
        return stored | {"weight_g_idx": groups}, restored

    check(write(quantize, settings("pack-quantized", weights)))


@pytest.mark.parametrize("tokens", [True, False])
def test_int8_weights_with_and_without_rounded_activations(write: Any, check: Any, tokens: bool) -> None:
    weights = integers(8, None, symmetric=True)
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    written = write(
        compressor("int-quantized", weights, torch.float32),
        settings("int-quantized", weights, activations if tokens else None),
    )
    model = check(written, close=0.02 if tokens else 1e-5)
    assert isinstance(model.weights.layers[0].o.format, DynamicInt8Format) == tokens


def test_int8_weights_about_zero_points(write: Any, check: Any) -> None:
    weights = integers(8, None, symmetric=False)
    check(write(compressor("int-quantized", weights, torch.float32), settings("int-quantized", weights)))


def test_e4m3_weights_by_row(write: Any, check: Any) -> None:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    written = write(compressor("float-quantized", weights, torch.float32), settings("float-quantized", weights))
    assert isinstance(check(written).weights.layers[0].o.format, Float8Format)


def test_nvfp4_divides_by_the_scale_of_the_tensor(write: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    made, arguments = _COMPRESSORS.get_value_from_registry("nvfp4-pack-quantized"), scheme(weights)

    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outer = (448 * 6 / weight.abs().max()).reshape(1)
        scale = (weight.view(weight.shape[0], -1, 16).abs().amax(-1) / 6 * outer).to(torch.float8_e4m3fn)
        state = {"weight": weight, "weight_scale": scale.float(), "weight_global_scale": outer}
        stored = made.compress(state, arguments) | {"weight_global_scale": outer}
        again = {name: t.float() if name == "weight_scale" else t for name, t in stored.items()}
        assert stored["weight_scale"].dtype == torch.float8_e4m3fn
        meant = compressed.E2M1.decode(compressed.E2M1.unpack(stored["weight_packed"], weight.shape[1]))
        meant = meant * (again["weight_scale"] / outer).repeat_interleave(16, 1)
        library = made.decompress(stored, arguments)["weight"].float()
        torch.testing.assert_close(meant, library, rtol=2e-2, atol=1e-4)  # the library decodes in bfloat16
        return stored, meant

    written = write(quantize, settings("nvfp4-pack-quantized", weights))
    check(written)
    monkeypatch.setattr(compressed, "E2M1", compressed.E2M1.__class__("fp4"))
    with pytest.raises(AssertionError):
        check(written)


def test_mxfp4_has_exponents_for_scales(write: Any, check: Any) -> None:
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    weights |= {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    made, arguments = _COMPRESSORS.get_value_from_registry("mxfp4-pack-quantized"), scheme(weights)

    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = torch.exp2((weight.view(weight.shape[0], -1, 32).abs().amax(-1) / 6).log2().ceil())
        stored = made.compress({"weight": weight, "weight_scale": scale}, arguments)
        return stored, made.decompress(stored, arguments)["weight"]

    plain = {name: value for name, value in weights.items() if "dtype" not in name}
    check(write(quantize, settings("mxfp4-pack-quantized", plain)))


def test_a_module_uses_the_settings_that_name_it(write: Any, check: Any) -> None:
    four, eight = integers(4, 32, symmetric=True), integers(8, 64, symmetric=False)
    small, large = compressor("pack-quantized", four), compressor("pack-quantized", eight)
    made = settings("pack-quantized", four)
    made["config_groups"]["group_1"] = {"targets": ["re:.*down_proj"], "weights": eight}
    model = check(write(lambda module, w: (large if "down" in module else small)(module, w), made))
    layer = model.weights.layers[0]
    assert (layer.down.format.group, layer.down.format.zeros) == (64, True)
    assert (layer.o.format.group, layer.o.format.zeros) == (32, False)


def test_a_number_of_bits_in_quotes_is_that_number(write: Any, check: Any) -> None:
    """As the library reads it, whose settings turn texts into numbers."""
    weights = integers(4, 32, symmetric=True)
    assert scheme(weights | {"num_bits": "4"}).weights.num_bits == 4
    check(write(compressor("pack-quantized", weights), settings("pack-quantized", weights | {"num_bits": "4"})))


@pytest.mark.parametrize("bits", ["four", 4.5, "4.0", True, None, [4], 0, -4, 16, ""])
def test_other_numbers_of_bits_are_refused(write: Any, bits: object) -> None:
    weights = integers(4, 32, symmetric=True)
    with pytest.raises(CheckpointError, match=f"num_bits {re.escape(repr(bits))}"):
        write(compressor("pack-quantized", weights), settings("pack-quantized", weights | {"num_bits": bits})).open()


@pytest.mark.parametrize("form", ["marlin-24", "sparse-24-bitmask", "mxfp8-quantized"])
def test_other_forms_are_refused_by_name(write: Any, form: str) -> None:
    weights = integers(4, 32, symmetric=True)
    with pytest.raises(UnsupportedModelError, match=f"{form}.*pack-quantized"):
        write(compressor("pack-quantized", weights), settings(form, weights)).open()


def test_scales_of_keys_values_and_inputs_are_left_out(write: Any) -> None:
    weights = integers(8, None, symmetric=True)
    plain = compressor("int-quantized", weights, torch.float32)

    def quantize(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = plain(module, weight)
        more = {"input_scale": torch.ones(1)}
        return parts | more | ({"k_scale": torch.ones(1)} if "k_proj" in module else {}), meant

    with write(quantize, settings("int-quantized", weights)).open() as checkpoint:
        assert not [name for name in checkpoint.tensors if name.endswith("_scale")]
