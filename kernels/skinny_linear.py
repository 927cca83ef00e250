"""y = x W^T for a few rows: the one entry to the kernels of linear_gemv.py and linear_tile.py, and their tiles.

A step that decodes a handful of rows reads every weight once, so its time is that of the memory, plus what launches and
dependencies leave idle between the products. Both kernels fold in what stands around a product (norm before it, bias,
gated activation, residual after it), and start early: on devices that can, a product's first weights are on their way
to L2 while the kernel before it ends. Which kernel and tile depends on shapes, type, device and the number of rows
alone, so that captured graphs stay valid and a row's result does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from octavo.kernels.activation import ACTIVATIONS, gated_reference
from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.device import DeviceTraits, device_traits
from octavo.kernels.linear_gemv import gemv_kernel
from octavo.kernels.linear_tile import tile_kernel

MAX_ROWS = 16
GEMV_ROWS = 2  # up to here multiply-adds keep up with the memory


@dataclass(frozen=True, slots=True)
class GemvTile:
    """A launch of `gemv_kernel`."""

    block_n: int
    block_k: int
    warps: int


@dataclass(frozen=True, slots=True)
class DotTile:
    """A launch of `tile_kernel`."""

    block_t: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    weight_first: bool = False


def skinny_linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    act: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """[T, out]: weight [out, in] times the RMS norm of x [T, in] by `norm` [in] (None: of x itself), plus bias; with
    `act`, weight is [2 out, in] = gate | up and the result act(gate) * up; plus residual [T, out]. All in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    h = x.to(wide)
    if norm is not None:
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * norm.to(wide)
    y = F.linear(h, weight.to(wide), None if bias is None else bias.to(wide))
    if act is not None:
        y = gated_reference(y, act)
    if residual is not None:
        y = y + residual.to(wide)
    return y.to(out_dtype or x.dtype)


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    act: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    tile: GemvTile | DotTile | None = None,
) -> Tensor:
    """As `skinny_linear_reference` for 1 to 16 rows, all of it dense; `out` may be the residual itself."""
    rows, size = x.shape
    outs = weight.shape[0] if act is None else weight.shape[0] // 2
    device = x.device
    if tile is None:
        tile = choose_tile(rows, outs, size, act is not None, device_traits(device))
    if out is None:
        out = torch.empty((rows, outs), dtype=out_dtype or x.dtype, device=device)
    launch(x, norm, weight, bias, residual, out, None, eps, act, tile)
    return out


def launch(
    x: Tensor,
    norm: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    ids: Tensor | None,
    eps: float,
    act: str | None,
    tile: GemvTile | DotTile,
) -> None:
    """One launch of the tile's kernel; with `ids`, out and ids [T, programs] get each program's best instead of y."""
    rows, size = x.shape
    outs = weight.shape[0] if act is None else weight.shape[0] // 2
    early = launches_early(x.device)
    tensors = (
        x,
        x if norm is None else norm,
        weight,
        x if bias is None else bias,
        x if residual is None else residual,
        out,
        x if ids is None else ids,
    )
    options = {
        "NORM": norm is not None,
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "BEST": ids is not None,
        "ACT": -1 if act is None else ACTIVATIONS[act],
        "EARLY": early,
        "SIZE": size,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "num_warps": tile.warps,
        "enable_fp_fusion": True,  # a third fewer instructions, and sums only gain
    }
    if early:
        options["launch_pdl"] = True
    grid = (triton.cdiv(outs, tile.block_n),)
    if isinstance(tile, GemvTile):
        gemv_kernel[grid](*tensors, outs, eps, ROWS=rows, **options)
    else:
        tile_kernel[grid](
            *tensors, rows, outs, eps,
            BLOCK_T=tile.block_t, STAGES=tile.stages, WEIGHT_FIRST=tile.weight_first, **options,
        )  # fmt: skip


def suits(rows: int, dtype: torch.dtype) -> bool:
    """Whether `skinny_linear` beats the library's product with the small operations around it as launches."""
    return 1 <= rows <= GEMV_ROWS and dtype in (torch.bfloat16, torch.float16)


@lru_cache(maxsize=256)
def choose_tile(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile | DotTile:
    """The kernel and tile for a product of this shape on a device with these figures."""
    if rows <= GEMV_ROWS:
        if gated:
            return GemvTile(1 if rows == 1 and outs >= 64 * traits.multiprocessors else 4, 512, 2)
        if size <= 1024 or (rows > 1 and outs >= 16 * traits.multiprocessors):
            return GemvTile(4, 1024, 4)
        return GemvTile(4, 2048, 8)
    return DotTile(16, 32, 128, 4, 4)


@lru_cache(maxsize=64)
def choose_head_tile(rows: int, outs: int, size: int, traits: DeviceTraits) -> GemvTile | DotTile:
    """The same for a product of which only each row's best output is kept: blocks of many outputs."""
    if rows <= GEMV_ROWS:
        return GemvTile(16, 512, 2)
    return DotTile(16, 64, 128, 5, 4, True)
