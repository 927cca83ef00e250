"""y = x W^T for some tens of rows of 16-bit weights: tiles by the tensor memory accelerator, warpgroup products.

Grid: blocks of 64 rows, blocks of BLOCK_N outputs, parts of the input. One warpgroup a program keeps STAGES tiles of
x and W on their way to shared memory; a tile's copy is asked for when the product that last read its room has ended,
while the next product runs. The first weights are asked for before the kernel that computes x has ended, which is worth
2 to 4 us a layer. Where outputs are too few for the multiprocessors, programs share the input, and leave float32
sums (`wide_linear_parts`) for the kernel that adds to the residual stream anyway (linear_parts.py): in a fixed order,
so that results have the same bits every time.

A program reads all of x for its part of the input, so x crosses from L2 once for every BLOCK_N outputs; with 64 rows
that is as much as the weights at 64 outputs, and half of it at 128. Bound by reading the weights once: a layer of an
8B in 124.6 us, at 3.5 of a copy's 4.25 TB/s (H200, 64 rows).
Needs compute capability 9.0 (its warpgroup products are no other generation's) and Triton's layout language.
"""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.device import DeviceTraits, device_traits

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    # the names that Triton 3.6 has for these, and the later ones
    load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
    wait_for_all = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
    AVAILABLE = True
except (ImportError, AttributeError):  # an experimental language: another Triton may have it otherwise
    AVAILABLE = False

BLOCK_T = 64
FEW_ROWS = 16  # up to here kernels of few rows take less
MAX_ROWS = 64


if AVAILABLE:

    @gluon.jit(do_not_specialize=["rows"])
    def wide_kernel(
        x_tiles,
        weight_tiles,
        bias_ptr,
        out_ptr,
        rows,
        outs,
        SIZE: gl.constexpr,
        BLOCK_T: gl.constexpr,
        BLOCK_N: gl.constexpr,
        BLOCK_K: gl.constexpr,
        STAGES: gl.constexpr,
        SPLIT: gl.constexpr,
        GATED: gl.constexpr,
        BIAS: gl.constexpr,
        PARTS: gl.constexpr,
        EARLY: gl.constexpr,
    ):
        """x [rows, SIZE] and weight [outs, SIZE], or [2 outs, SIZE] = gate | up if GATED, as tiles; out [rows, outs],
        or if PARTS float32 [SPLIT, rows, outs]; bias [outs]."""
        LINES: gl.constexpr = 2 if GATED else 1
        TURNS: gl.constexpr = (SIZE + BLOCK_K - 1) // BLOCK_K
        EACH: gl.constexpr = (TURNS + SPLIT - 1) // SPLIT
        TURN_BYTES: gl.constexpr = (BLOCK_T + LINES * BLOCK_N) * BLOCK_K * 2
        SUMS: gl.constexpr = gl.NVMMADistributedLayout(
            version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
        )
        first_row = gl.program_id(0) * BLOCK_T
        first = gl.program_id(1) * BLOCK_N
        begin = gl.program_id(2) * EACH
        turns = gl.minimum(TURNS - begin, EACH)
        x_room = gl.allocate_shared_memory(x_tiles.dtype, [STAGES, BLOCK_T, BLOCK_K], x_tiles.layout)
        w_room = gl.allocate_shared_memory(weight_tiles.dtype, [STAGES * LINES, BLOCK_N, BLOCK_K], weight_tiles.layout)
        arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(arrived.index(stage), count=1)
        if EARLY:
            gdc_launch_dependents()
        for stage in gl.static_range(STAGES):
            mbarrier.expect(arrived.index(stage), TURN_BYTES, pred=stage < turns)
            for line in gl.static_range(LINES):
                load_tile(
                    weight_tiles,
                    [first + line * outs, (begin + stage) * BLOCK_K],
                    arrived.index(stage),
                    w_room.index(stage * LINES + line),
                    pred=stage < turns,
                )
        if EARLY:
            gdc_wait()
        for stage in gl.static_range(STAGES):
            column = (begin + stage) * BLOCK_K
            load_tile(x_tiles, [first_row, column], arrived.index(stage), x_room.index(stage), pred=stage < turns)
        zero = gl.zeros([BLOCK_T, BLOCK_N], gl.float32, SUMS)
        y = warpgroup_mma_init(zero)
        u = warpgroup_mma_init(zero)
        for turn in range(turns):
            room = turn % STAGES
            mbarrier.wait(arrived.index(room), (turn // STAGES) & 1)
            x = x_room.index(room)
            y = warpgroup_mma(x, w_room.index(room * LINES).permute([1, 0]), y, is_async=True)
            if GATED:
                u = warpgroup_mma(x, w_room.index(room * LINES + 1).permute([1, 0]), u, is_async=True)
                # all but this turn's products have ended
                ended, up_ended = warpgroup_mma_wait(LINES, deps=[y, u])
                u = warpgroup_mma_init(up_ended)
            else:
                ended = warpgroup_mma_wait(LINES, deps=[y])
            y = warpgroup_mma_init(ended)
            free = (turn + STAGES - 1) % STAGES
            coming = turn + STAGES - 1
            wanted = (turn > 0) & (coming < turns)
            wait_for_all()
            mbarrier.expect(arrived.index(free), TURN_BYTES, pred=wanted)
            at = (begin + coming) * BLOCK_K
            for each in gl.static_range(LINES):
                load_tile(
                    weight_tiles,
                    [first + each * outs, at],
                    arrived.index(free),
                    w_room.index(free * LINES + each),
                    pred=wanted,
                )
            load_tile(x_tiles, [first_row, at], arrived.index(free), x_room.index(free), pred=wanted)
        if GATED:
            result, up = warpgroup_mma_wait(0, deps=[y, u])
        else:
            result = warpgroup_mma_wait(0, deps=[y])
        t = first_row + gl.arange(0, BLOCK_T, layout=gl.SliceLayout(1, SUMS))
        n = first + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, SUMS))
        if BIAS:
            result += gl.load(bias_ptr + n, mask=n < outs, other=0.0).to(gl.float32)[None, :]
            if GATED:
                up += gl.load(bias_ptr + outs + n, mask=n < outs, other=0.0).to(gl.float32)[None, :]
        if GATED:
            result = result / (1.0 + gl.exp(-result)) * up
        valid = (t < rows)[:, None] & (n < outs)[None, :]
        place = t[:, None] * outs + n[None, :]
        if PARTS:
            part = gl.program_id(2).to(gl.int64) * rows * outs
            gl.store(out_ptr + part + place, result, mask=valid)
        else:
            gl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=valid)


@dataclass(frozen=True, slots=True)
class WideTile:
    """A launch of `wide_kernel`: outputs and columns of a tile, tiles on their way, programs that share an output."""

    block_n: int
    block_k: int
    stages: int
    split: int = 1


def wide_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, in] times weight [out, in] plus bias, in x's type or `out_dtype`, for up to 64 dense rows; if `gated`,
    weight is [2 out, in] = gate | up and the result silu(gate) * up, computed in float32."""
    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    tile = choose_wide_tile(x.shape[0], outs, x.shape[1], gated, False, device_traits(x.device))
    out = torch.empty((x.shape[0], outs), dtype=out_dtype or x.dtype, device=x.device)
    launch_wide(x, weight, bias, out, tile, gated)
    return out


def wide_linear_parts(x: Tensor, weight: Tensor) -> Tensor:
    """float32 [parts, T, out] whose sum over the parts is x [T, in] times weight [out, in], for up to 64 dense rows."""
    outs = weight.shape[0]
    tile = choose_wide_tile(x.shape[0], outs, x.shape[1], False, True, device_traits(x.device))
    out = torch.empty((tile.split, x.shape[0], outs), dtype=torch.float32, device=x.device)
    launch_wide(x, weight, None, out, tile, False)
    return out


def launch_wide(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tile: WideTile, gated: bool) -> None:
    """One launch: out [T, outs], or float32 [split, T, outs]."""
    rows, size = x.shape
    lines, outs = weight.shape[0], out.shape[-1]
    early = launches_early(x.device)
    options: dict[str, object] = {"launch_pdl": True} if early else {}
    wide_kernel[(triton.cdiv(rows, BLOCK_T), triton.cdiv(outs, tile.block_n), tile.split)](
        _tiles(x, rows, size, BLOCK_T, tile.block_k),
        _tiles(weight, lines, size, tile.block_n, tile.block_k),
        out if bias is None else bias,
        out,
        rows,
        outs,
        SIZE=size,
        BLOCK_T=BLOCK_T,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.stages,
        SPLIT=tile.split,
        GATED=gated,
        BIAS=bias is not None,
        PARTS=out.ndim == 3,
        EARLY=early,
        num_warps=4,
        **options,
    )


def suits_wide(rows: int, weight: Tensor, device: torch.device) -> bool:
    """Whether these kernels multiply so many rows by such a weight [outs, in], gate and up together."""
    outs, size = weight.shape
    return (
        AVAILABLE
        and FEW_ROWS < rows <= MAX_ROWS
        and weight.dtype in (torch.bfloat16, torch.float16)
        and device.type != "cpu"
        and device_traits(device).capability == 90
        and size % 8 == 0  # the tensor memory accelerator's rows begin at multiples of 16 bytes
        and outs % 2 == 0
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
    )


def _tiles(matrix: Tensor, rows: int, size: int, block_rows: int, block_columns: int) -> TensorDescriptor:
    block = [block_rows, block_columns]
    return TensorDescriptor(matrix, [rows, size], [size, 1], block, _layout(block_rows, block_columns, matrix.dtype))


@lru_cache(maxsize=64)
def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    number = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], number)


@lru_cache(maxsize=256)
def choose_wide_tile(rows: int, outs: int, size: int, gated: bool, parts: bool, traits: DeviceTraits) -> WideTile:
    """The tile for a product of this shape; how many programs share an output does not depend on `rows`, nor therefore
    do a row's results.

    Measured on an H200 with the shapes of an 8B and a 0.5B model, in the order in which a layer runs them.
    """
    processors = traits.multiprocessors
    if parts:
        # so few outputs that programs must share them: as many as there are multiprocessors, each with some turns
        block_n = 128 if 5 * outs >= 128 * processors else 64 if size > 1024 else 32
        turns = triton.cdiv(size, 64)
        each = max(4, triton.cdiv(turns, max(1, processors // triton.cdiv(outs, block_n))))
        return WideTile(block_n, 64, min(each, 8 if block_n == 128 else 6), triton.cdiv(turns, each))
    if gated:
        if outs >= 64 * processors:
            # two programs a multiprocessor; of fewer rows, whose x is half as much, one larger tile reads faster
            return WideTile(64, 128, 2) if rows > 32 else WideTile(128, 64, 5)
        return WideTile(32, 64, 6) if rows > 32 else WideTile(64, 64, 9)
    if outs >= 256 * processors:
        return WideTile(128, 64, 4)
    block_n = 64
    while block_n > 16 and 2 * outs < block_n * processors:
        block_n //= 2
    return WideTile(block_n, 64, min(triton.cdiv(size, 64), 8 if block_n == 64 else 14))
