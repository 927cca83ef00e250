"""A rounded linear as the tensors of a checkpoint format, and what config.json says of them.

compressed-tensors: pack-quantized and int-quantized. AWQ: AutoAWQ's layout "gemm". The readers of the same formats are
in engine/load/packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Layout = Literal["pack-quantized", "int-quantized", "awq"]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbouring columns each nibble holds, the lowest first


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [..., n] of 4 or 8 bits to int32 words [..., ceil(n * bits / 32)], lowest first, zeros at the end."""
    short = -codes.shape[-1] % (32 // bits)
    padded = torch.nn.functional.pad(codes, (0, short)) if short else codes
    if bits == 4:
        padded = padded[..., ::2] | (padded[..., 1::2] << 4)
    # a copy in rows, whatever the strides are; little-endian, as the files are
    return padded.clone(memory_format=torch.contiguous_format).view(torch.int32)


def packed_tensors(
    layout: Layout,
    bits: int,
    symmetric: bool,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Tensors by role from codes uint8 [out, in], scales and whole zero points [out, groups]. Scales are stored in
    `dtype`."""
    if layout == "awq":
        return {
            "qweight": _awq_words(codes.T),
            "qzeros": _awq_words(zero.to(torch.uint8).T),
            "scales": scale.T.contiguous().to(torch.float16),
        }
    stored = {"weight_scale": scale.to(dtype)}
    if layout == "int-quantized":
        return {"weight": (codes.to(torch.int16) - 128).to(torch.int8)} | stored
    stored |= {
        "weight_packed": pack_words(codes, bits),
        "weight_shape": torch.tensor(codes.shape, dtype=torch.int64),
    }
    if not symmetric:
        stored["weight_zero_point"] = pack_words(zero.to(torch.uint8).T, bits).T.contiguous()
    return stored


def _awq_words(codes: Tensor) -> Tensor:
    """uint8 [rows, out] to int32 [rows, out / 8]."""
    return pack_words(codes.unflatten(1, (-1, 8))[..., _AWQ_ORDER].flatten(1), 4)


def quantization_config(
    layout: Layout, bits: int, group: int, symmetric: bool, act_order: bool, plain: Sequence[str]
) -> dict[str, Any]:
    """The `quantization_config` of config.json; `plain` are the linears that stay as they are; with `act_order` columns
    were rounded in another order than they stand."""
    if layout == "awq":
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": bits,
            "group_size": group or -1,
            "zero_point": True,
            "modules_to_not_convert": list(plain),
        }
    weights: dict[str, Any] = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if group else "channel",
        "group_size": group or None,
        "dynamic": False,
        "actorder": "weight" if act_order else None,
    }
    activations = None
    if layout == "int-quantized":
        activations = {
            "num_bits": 8,
            "type": "int",
            "symmetric": True,
            "strategy": "token",
            "group_size": None,
            "dynamic": True,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
                "output_activations": None,
            }
        },
        "ignore": list(plain),
        "kv_cache_scheme": None,
    }
