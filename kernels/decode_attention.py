"""Launches decode attention: one query token a row, over pages, with the newest key and value on the way in.

`DecodeWork` is what a step's layers of one shape share: the device-made schedule, room for partial results, and which
rows read a common prefix once. The kernels are described in attention_schedule.py, attention_decode.py and
attention_prefix.py; shapes as in paged_attention.py. Pages of 8-bit codes come with their scales (kv_format.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from octavo.kernels.attention_decode import decode_kernel
from octavo.kernels.attention_merge import LSE_COPIES
from octavo.kernels.attention_prefix import prefix_kernel
from octavo.kernels.attention_rope import NewTokens
from octavo.kernels.attention_schedule import ENTRY_FIELDS, schedule_kernel
from octavo.kernels.dependent_launch import launches_early
from octavo.kernels.device import DeviceTraits, device_traits
from octavo.kernels.kv_format import KernelPlanes, KVScales, kernel_planes
from octavo.kernels.paged_attention import ROOMY, AttentionShape, Tile, padded

TWO_DEEPEST = 220_000  # shared memory that holds two of the deepest pipelines
MIN_RUN_KEYS = 64  # a shorter run costs more to merge than it gains
MAX_RUNS = 64
MERGE_UNROLL = 8  # partial results that a merging program asks for at once
MAX_PREFIX_SPLITS = 16
PREFIX_MIN_KEYS = 128


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Spans of rows whose tables begin with the same pages. int32 on the device: span s is the rows
    order[starts[s]] .. order[starts[s + 1] - 1], which share the first shared[row] tokens, whole pages that all of them
    attend to; 0 in rows of no span. Spans may be empty."""

    order: Tensor  # [R]
    starts: Tensor  # [S + 1]
    shared: Tensor  # [R]


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """How one step's decode rows are cut; `rows` bounds what the device tensors hold."""

    rows: int
    entries: int
    tile: Tile
    dot: bool  # tensor cores, else one query head a program
    new: bool  # the newest key and value are not in the pages yet
    schedule: Tensor  # int32 [entries, 8]
    partial: Tensor  # float32 [entries, Hq, Dv]
    partial_lse: Tensor  # float32 [entries, Hq, copies]
    counters: Tensor  # int32, zero between launches
    prefixes: SharedPrefixes | None
    prefix: Tensor  # float32 [splits, R, Hq, Dv]
    prefix_lse: Tensor  # float32 [splits, R, Hq, copies]


def decode_tile(
    shape: AttentionShape, dtype: torch.dtype, traits: DeviceTraits, programs: int = 0, *, quantized: bool = False
) -> tuple[Tile, bool]:
    """The tile of the decode kernel, and whether it uses dots (else one query head a program, on vectors).

    Deep pipelines win while all `programs` are resident at once, more resident programs otherwise (measured on an
    H200 at head sizes 64 and 128, 1 to 64 rows).
    """
    width = max(padded(shape.dim), padded(shape.v_dim))
    if dtype == torch.float32 or not traits.tensor_cores:
        return Tile(m=1, n=max(16, min(64, 4096 // width)), warps=4, stages=2), False
    m = min(64, max(16, triton.next_power_of_2(shape.group)))
    if quantized:
        return Tile(m=m, n=min(128, 8192 // width), warps=4, stages=3), True
    deep = width > 64 and traits.shared_bytes > ROOMY and programs <= 3 * traits.multiprocessors
    if width == 128 and traits.shared_bytes >= TWO_DEEPEST and 2 * programs <= 5 * traits.multiprocessors:
        return Tile(m=m, n=64, warps=8, stages=4), True  # one row of 32k: 45 us instead of 49
    if width == 128 and traits.shared_bytes > ROOMY and not deep:
        # as much on its way, by smaller steps: 41 us instead of 45 for 64 rows of 512 tokens
        return Tile(m=m, n=32, warps=4, stages=4 if programs <= 12 * traits.multiprocessors else 3), True
    return Tile(m=m, n=min(128, 8192 // width), warps=4, stages=3 if deep else 2), True


def head_programs(shape: AttentionShape, tile: Tile) -> int:
    """Programs that share an entry's keys."""
    return shape.kv_heads * triton.cdiv(shape.group, tile.m)


def wanted_programs(shape: AttentionShape, traits: DeviceTraits) -> int:
    """How many programs fill the device: narrower heads need more of them to fill the memory bus."""
    width = max(padded(shape.dim), padded(shape.v_dim))
    return max(2, 256 // width) * traits.multiprocessors


def decode_work(
    shape: AttentionShape,
    dtype: torch.dtype,
    q_pos: Tensor,
    kv_len: Tensor,
    *,
    rows: int,
    new: bool = False,
    counters: Tensor | None = None,
    prefixes: SharedPrefixes | None = None,
    programs: int | None = None,
    quantized: bool = False,
) -> DecodeWork:
    """Launches the schedule of rows 0 .. rows - 1 (at least one) and makes room for their partial results.

    `counters`: at least `counters_needed` int32 zeros that no other stream uses meanwhile. Shared prefixes count only
    in layers without a window, which attend to all of them. `programs` overrides what fills the device; `quantized`:
    for pages of 8-bit codes.
    """
    device = q_pos.device
    traits = device_traits(device)
    tile, dot = decode_tile(shape, dtype, traits, quantized=quantized)
    heads = head_programs(shape, tile)
    wanted_runs = triton.cdiv(programs or wanted_programs(shape, traits), heads)
    entries = rows + wanted_runs
    tile, dot = decode_tile(shape, dtype, traits, entries * heads, quantized=quantized)
    if shape.window is not None or not dot:
        prefixes = None
    if counters is None:
        counters = torch.zeros(counters_needed(shape, rows, dtype, traits), dtype=torch.int32, device=device)
    schedule = torch.empty((entries, ENTRY_FIELDS.value), dtype=torch.int32, device=device)
    # The decode kernel reads the schedule before it waits for the kernel ahead of it. That must therefore be an older
    # one: launched again, the same numbers are written, and the first launch has ended by then.
    for _ in range(2 if launches_early(device) else 1):
        schedule_kernel[(rows,)](
            schedule,
            kv_len,
            q_pos,
            kv_len if prefixes is None else prefixes.shared,
            rows,
            entries,
            wanted_runs,
            0 if shape.window is None else shape.window,
            BLOCK_R=max(32, triton.next_power_of_2(rows)),
            BLOCK_N=tile.n,
            MIN_TILES=max(1, MIN_RUN_KEYS // tile.n),
            MAX_RUNS=MAX_RUNS,
            WINDOW=shape.window is not None,
            CAUSAL=shape.causal,
            NEW=new,
            SHARED=prefixes is not None,
            num_warps=1 if rows <= 32 else 4,
        )

    def room(*dims: int) -> Tensor:
        return torch.empty(dims, dtype=torch.float32, device=device)

    splits = 0 if prefixes is None else _prefix_splits(shape, rows, traits)
    return DecodeWork(
        rows=rows,
        entries=entries,
        tile=tile,
        dot=dot,
        new=new,
        schedule=schedule,
        partial=room(entries, shape.q_heads, shape.v_dim),
        partial_lse=room(entries, shape.q_heads, LSE_COPIES.value),
        counters=counters,
        prefixes=prefixes,
        prefix=room(splits, rows, shape.q_heads, shape.v_dim),
        prefix_lse=room(splits, rows, shape.q_heads, LSE_COPIES.value),
    )


def counters_needed(shape: AttentionShape, rows: int, dtype: torch.dtype, traits: DeviceTraits) -> int:
    """Arrival counters that so many rows use."""
    return rows * head_programs(shape, decode_tile(shape, dtype, traits)[0])


def decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    out: Tensor,
    lse: Tensor | None,
    shape: AttentionShape,
    work: DecodeWork,
    q_pos: Tensor,
    new: NewTokens | None = None,
    scales: KVScales | None = None,
) -> None:
    """Fills out[:rows] (and the natural-log lse[:rows]) for the rows of `work`, whose tokens are q[:rows].

    With `new` (if and only if the work was made so, else ValueError) q is not rotated, and the newest keys and values
    are stored at their slots. out and lse are dense. `scales` come with pages of 8-bit codes, and are written too.
    """
    if (new is not None) != work.new:
        raise ValueError("the schedule was made for the other way of getting the newest keys")
    planes = kernel_planes(k_pages, v_pages, scales, q, words=work.dot)
    shared = _geometry(q, planes, shape, new)
    splits, prefix_tile = 0, work.tile
    if work.prefixes is not None:
        splits, prefix_tile = work.prefix.shape[0], _prefix_tile(shape)
        _prefix_attention(q, planes, table, shape, work, work.prefixes, q_pos, prefix_tile, shared)
    merged = triton.next_power_of_2(min(shape.group, work.tile.m))
    early = launches_early(q.device)
    options: dict[str, object] = {"launch_pdl": True} if early else {}
    arrived = q if new is None else new.k  # any tensor: not read without new tokens
    decode_kernel[(work.entries, head_programs(shape, work.tile))](
        q,
        *planes.tensors,
        out,
        out if lse is None else lse,
        work.partial,
        work.partial_lse,
        work.prefix,
        work.prefix_lse,
        work.counters,
        work.schedule,
        table,
        arrived,
        q if new is None else new.v,
        slots_ptr=table if new is None else new.slots,
        k_weight_ptr=arrived if new is None or new.k_weight is None else new.k_weight,
        rows=work.rows,
        prefix_splits=splits,
        table_stride=table.stride(0),
        k_new_token_stride=0 if new is None else new.k.stride(0),
        k_new_head_stride=0 if new is None else new.k.stride(1),
        v_new_token_stride=0 if new is None else new.v.stride(0),
        v_new_head_stride=0 if new is None else new.v.stride(1),
        BLOCK_M=work.tile.m,
        BLOCK_N=work.tile.n,
        BLOCK_G=merged,
        UNROLL=MERGE_UNROLL,
        SHARED=work.prefixes is not None,
        PREFIX_N=prefix_tile.n,
        PREFIX_MIN_TILES=PREFIX_MIN_KEYS // prefix_tile.n,
        LSE=lse is not None,
        DOT=work.dot,
        num_warps=work.tile.warps,
        num_stages=work.tile.stages,
        enable_fp_fusion=True,
        EARLY=early,
        **shared,
        **options,
    )


def _prefix_tile(shape: AttentionShape) -> Tile:
    width = max(padded(shape.dim), padded(shape.v_dim))
    return Tile(m=64, n=64 if width <= 128 else 32, warps=4, stages=2)


def _prefix_splits(shape: AttentionShape, rows: int, traits: DeviceTraits) -> int:
    """Into how many runs shared keys are cut for `rows` rows: two programs a multiprocessor, or one of narrow heads,
    whose results are as long to weigh for less to read (measured on an H200, 64 rows and 2,048 shared tokens)."""
    tile = _prefix_tile(shape)
    heads = min(shape.group, tile.m)
    programs = triton.cdiv(rows, tile.m // heads) * shape.kv_heads * triton.cdiv(shape.group, heads)
    each = 2 if max(shape.dim, shape.v_dim) > 64 else 1
    return max(1, min(MAX_PREFIX_SPLITS, each * traits.multiprocessors // programs))


def _prefix_attention(
    q: Tensor,
    planes: KernelPlanes,
    table: Tensor,
    shape: AttentionShape,
    work: DecodeWork,
    prefixes: SharedPrefixes,
    q_pos: Tensor,
    tile: Tile,
    shared: dict[str, object],
) -> None:
    """Leaves the partial results of the shared pages in work.prefix and work.prefix_lse."""
    spans = prefixes.starts.shape[0] - 1
    heads = min(shape.group, tile.m)
    tiles = work.rows // (tile.m // heads) + spans
    early = launches_early(q.device)
    options: dict[str, object] = {"launch_pdl": True} if early else {}
    splits = work.prefix.shape[0]
    prefix_kernel[(tiles, shape.kv_heads * triton.cdiv(shape.group, heads), splits)](
        q,
        *planes.tensors,
        work.prefix,
        work.prefix_lse,
        table,
        prefixes.order,
        prefixes.starts,
        prefixes.shared,
        q_pos,
        rows=work.rows,
        spans=spans,
        splits=splits,
        table_stride=table.stride(0),
        HEADS=heads,
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        MIN_TILES=PREFIX_MIN_KEYS // tile.n,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
        EARLY=early,
        **shared,
        **options,
    )


def _geometry(q: Tensor, planes: KernelPlanes, shape: AttentionShape, new: NewTokens | None) -> dict[str, object]:
    """The arguments that both kernels have in common."""
    weight = None if new is None else new.q_weight
    return planes.strides | {
        "q_token_stride": q.stride(0),
        "q_head_stride": q.stride(1),
        "cos_sin_ptr": q if new is None else new.cos_sin,
        "q_weight_ptr": q if weight is None else weight,
        "eps": 0.0 if new is None else new.eps,
        "scale": shape.scale,
        "softcap": shape.softcap or 0.0,
        "Q_HEADS": shape.q_heads,
        "GROUP": shape.group,
        "DIM": shape.dim,
        "V_DIM": shape.v_dim,
        "BLOCK_D": padded(shape.dim, planes.least_block),
        "BLOCK_V": padded(shape.v_dim, planes.least_block),
        "PAGE_SIZE": planes.k.shape[2],
        "SOFTCAP": shape.softcap is not None,
        "PRECISION": "ieee",
        "NEW": new is not None,
        "HALF": 0 if new is None else new.cos_sin.shape[1] // 2,
        "NORM": weight is not None,
        "ROUND_FIRST": weight is not None and weight.dtype == q.dtype,
        "KV": planes.kind,
        "WIDE": planes.wide,
    }
