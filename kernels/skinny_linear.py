"""y = x W^T for a few rows: the one entry to the kernels of linear_gemv.py and linear_tile.py, and their tiles.

A step that decodes a handful of rows reads every weight once, so its time is that of the memory, plus what launches and
dependencies leave idle between the products. Both kernels fold in what stands around a product (norm before it, bias,
gated activation, residual after it), and start early: on devices that can, a product's first weights are on their way
while the kernel before it ends. Weights are 16-bit numbers or codes of fewer bits (quant_weight.py, whose 4-bit codes
have kernels of their own). Which kernel and tile depends on shapes, type, device and the number of rows alone, so that
captured graphs stay valid and a row's result does not depend on its neighbours.
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
from octavo.kernels.digit_linear import launch_digits
from octavo.kernels.float8_linear import takes_float8
from octavo.kernels.linear_gemv import gemv_kernel
from octavo.kernels.linear_tile import tile_kernel
from octavo.kernels.linear_tiles import DigitRowTile, DigitTile, DotTile, GemvTile, Tile
from octavo.kernels.quant_linear import code_of, coded_tile, launch_low_bits
from octavo.kernels.quant_number import PLAIN
from octavo.kernels.quant_weight import CodedWeight, coded_reference

MAX_ROWS = 16
MAX_ROWS_OF_WORDS = 64  # of codes in words
GEMV_ROWS = 2  # up to here multiply-adds keep up with the memory
MAX_ROWS_OF_LARGE = 8  # of weights beyond SMALL_BYTES the library's kernels take more rows as fast
SMALL_BYTES = 32 << 20


def skinny_linear_reference(
    x: Tensor,
    weight: Tensor | CodedWeight,
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
    if isinstance(weight, CodedWeight):
        weight = coded_reference(weight, wide)
    if norm is not None:
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * norm.to(wide)
    y = F.linear(h, weight.to(wide), None if bias is None else bias.to(wide))
    if act is not None:
        y = gated_reference(y, act)
    if residual is not None:
        y = y + residual.to(wide)
    return y.to(out_dtype or x.dtype)


@dataclass(frozen=True, slots=True)
class Normed:
    """A residual stream on its way into a norm: times the norm's weights [T, H], and float32 partial sums of the
    stream's squares [T, programs]."""

    x: Tensor
    squares: Tensor


def skinny_linear(
    x: Tensor,
    weight: Tensor | CodedWeight,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    squares: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    act: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """As `skinny_linear_reference` for 1 to 16 rows, or 64 of weights in codes, all of it dense; `out` may be the
    residual itself.

    What multiply-adds compute takes `norm` (see `folds_norm`); else x and squares of a Normed stand for both.
    """
    rows = x.shape[0]
    outs = weight.shape[0] if act is None else weight.shape[0] // 2
    if tile is None:
        tile = _tile_for(x, weight, outs, act is not None)
    if out is None:
        out = torch.empty((rows, outs), dtype=out_dtype or x.dtype, device=x.device)
    launch(x, weight, bias, residual, out, tile, norm=norm, squares=squares, eps=eps, act=act)
    return out


def skinny_linear_add(
    x: Tensor,
    weight: Tensor | CodedWeight,
    bias: Tensor | None,
    stream: Tensor,
    next_norm: Tensor | None,
    tile: Tile | None = None,
) -> Normed | None:
    """Adds a product to the residual stream [T, out] in place, and prepares the norm that follows, if it is given and
    tensor cores compute this product (else the next one, so computed too, does it itself)."""
    rows, outs = x.shape[0], weight.shape[0]
    if tile is None:
        tile = _tile_for(x, weight, outs, False)
    normed = None
    if next_norm is not None and isinstance(tile, DotTile):
        blocks = triton.cdiv(outs, tile.block_n * tile.tiles) * tile.tiles
        squares = torch.empty((rows, blocks), dtype=torch.float32, device=x.device)
        normed = Normed(torch.empty_like(stream), squares)
    launch(x, weight, bias, stream, stream, tile, next_norm=next_norm, normed=normed)
    return normed


def launch(
    x: Tensor,
    weight: Tensor | CodedWeight,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    tile: Tile,
    *,
    norm: Tensor | None = None,
    squares: Tensor | None = None,
    eps: float = 0.0,
    act: str | None = None,
    ids: Tensor | None = None,
    next_norm: Tensor | None = None,
    normed: Normed | None = None,
) -> None:
    """One launch of the tile's kernel; with `ids`, out and ids [T, programs] get each program's best instead of y."""
    rows, size = x.shape
    outs = weight.shape[0] if act is None else weight.shape[0] // 2
    early = launches_early(x.device)
    options = {
        "SIZE": size,
        "BLOCK_N": tile.block_n,
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "ACT": -1 if act is None else ACTIVATIONS[act],
        "BEST": ids is not None,
        "EARLY": early,
        "num_warps": tile.warps,
        "enable_fp_fusion": True,
    }
    if early:
        options["launch_pdl"] = True
    bias_or_x = x if bias is None else bias
    residual_or_x = x if residual is None else residual
    ids_or_x = x if ids is None else ids
    squares_or_x = x if squares is None else squares
    parts = 0 if squares is None else squares.shape[1]
    nexts = (x, x, x) if normed is None else (next_norm, normed.x, normed.squares)
    if isinstance(weight, CodedWeight):
        words = weight.code not in ("int8", "e4m3") or (isinstance(tile, DotTile) and tile.wide)
        if isinstance(tile, DigitRowTile | DigitTile) or words or takes_float8(tile):
            around = {
                "bias": bias_or_x, "residual": residual_or_x, "ids": ids_or_x, "norm": norm, "eps": eps,
                "squares": squares_or_x, "parts": parts, "next": normed is not None,
                "next_norm": nexts[0], "next_x": nexts[1], "next_squares": nexts[2],
            }  # fmt: skip
            if isinstance(tile, DigitRowTile | DigitTile):
                launch_digits(x, weight, out, tile, around, options)
            else:
                launch_low_bits(x, weight, out, tile, around, options)
            return
        codes, scale = weight.codes, weight.scale
        options["GROUP"] = weight.scale_columns
        assert isinstance(tile, DotTile) or not weight.in_words
        pairs = isinstance(tile, DotTile) and (tile.pairs or weight.in_words) and x.dtype == torch.bfloat16
        options["CODE"] = code_of(weight, x.device, device_traits(x.device), pairs)
    else:
        codes, scale = weight, x
        options |= {"CODE": PLAIN, "GROUP": 0}
    assert not isinstance(tile, DigitRowTile | DigitTile)
    options["BLOCK_K"] = tile.block_k
    if isinstance(tile, GemvTile):
        gemv_kernel[(triton.cdiv(outs, tile.block_n),)](
            x, x if norm is None else norm, codes, scale, bias_or_x, residual_or_x, out, ids_or_x, outs, eps,
            ROWS=rows, NORM=norm is not None, **options,
        )  # fmt: skip
        return
    tile_kernel[(triton.cdiv(outs, tile.block_n), triton.cdiv(rows, tile.block_t))](
        x, squares_or_x, codes, scale, bias_or_x, residual_or_x, out, ids_or_x, *nexts, rows, outs, parts, eps,
        BLOCK_T=tile.block_t, STAGES=tile.stages, SLICES=tile.slices, FIRST=tile.first,
        PARTS=triton.next_power_of_2(parts) if parts else 0, NEXT=normed is not None, **options,
    )  # fmt: skip


def _tile_for(x: Tensor, weight: Tensor | CodedWeight, outs: int, gated: bool) -> Tile:
    rows, size = x.shape
    traits = device_traits(x.device)
    if isinstance(weight, CodedWeight):
        return coded_tile(weight, rows, gated, traits, x.dtype)
    return choose_tile(rows, outs, size, gated, traits)


def folds_norm(x: Tensor, weight: Tensor | CodedWeight, gated: bool) -> bool:
    """Whether `skinny_linear` takes a norm's weights for such a product, or x and squares of a Normed."""
    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    return not isinstance(_tile_for(x, weight, outs, gated), DotTile)


def suits(rows: int, outs: int, size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `skinny_linear` beats the library's product with the small operations around it as launches; `outs`
    counts all rows of the weight."""
    if dtype not in (torch.bfloat16, torch.float16) or rows < 1:
        return False
    if rows <= GEMV_ROWS:
        return True
    small = outs * size * dtype.itemsize <= SMALL_BYTES
    return device_traits(device).tensor_cores and rows <= (MAX_ROWS if small else MAX_ROWS_OF_LARGE)


def suits_codes(rows: int, weight: CodedWeight, dtype: torch.dtype, device: torch.device) -> bool:
    """The same for weights in codes, which are read as they are by no other kernel."""
    most = 1
    if device_traits(device).tensor_cores:
        most = MAX_ROWS_OF_WORDS if weight.in_words else MAX_ROWS
    if weight.outer is not None:  # and groups of 16 columns, of which tiles multiply 32 at a time
        most = 1
    return dtype in (torch.bfloat16, torch.float16) and 1 <= rows <= most


@lru_cache(maxsize=256)
def choose_tile(rows: int, outs: int, size: int, gated: bool, traits: DeviceTraits) -> GemvTile | DotTile:
    """The kernel and tile for a product of this shape on a device with these figures.

    Measured on an H200 with the shapes of an 8B and a 0.5B model, in the order in which a layer runs them: a tile that
    is best after itself need not be best after its neighbours.
    """
    wide = outs >= 16 * traits.multiprocessors
    if rows <= GEMV_ROWS:
        if gated:
            if outs < 64 * traits.multiprocessors:
                return GemvTile(4, 512, 2)
            return GemvTile(2, 2048, 8) if rows == 1 else GemvTile(2, 1024, 4)
        if size <= 1024 or outs > size:
            return GemvTile(4, 1024, 4)
        return GemvTile(4, 2048, 8) if rows > 1 and wide else GemvTile(2, 2048, 8)
    # More than 48 KiB of shared memory each: a multiprocessor that changes how its memory is split between cache and
    # shared memory must drain first, and beyond 48 KiB all kernels ask for the same split (11 us of an 8B layer).
    rows_padded = 8 if rows <= 8 else 16
    if gated and traits.capability // 10 in (9, 10):
        return DotTile(16, 64, 64, 6, 4) if size <= 1024 else DotTile(16, 64, 128, 4, 4)
    if gated:
        return DotTile(rows_padded, 16, 64, 4 if rows <= 8 else 3, 4, slices=4)
    first = 1024 if size <= 1024 else 0
    return DotTile(rows_padded, 16, 64, 6 if rows <= 8 else 5, 4, slices=4, first=first)


@lru_cache(maxsize=64)
def choose_head_tile(rows: int, outs: int, size: int, traits: DeviceTraits) -> GemvTile | DotTile:
    """The same for a product of which only each row's best output is kept: blocks of many outputs."""
    if rows <= GEMV_ROWS:
        return GemvTile(16, 512, 2)
    return DotTile(16, 64, 128, 4, 4)
