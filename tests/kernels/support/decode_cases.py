"""Decode batches whose newest tokens are still in the projection, and batches whose rows share pages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from kernel_cases import NAN, PagedBatch
from torch import Tensor

from octavo.kernels.attention_rope import NewTokens
from octavo.kernels.decode_attention import SharedPrefixes, decode_attention, decode_work
from octavo.kernels.paged_attention import AttentionShape
from octavo.kernels.rope import rope_write_reference


def attend_decode(
    batch: PagedBatch,
    shape: AttentionShape,
    programs: int | None = None,
    new: NewTokens | None = None,
    prefixes: SharedPrefixes | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of the decode rows of a batch, computed into NaN; the counters must be back at zero."""
    out, lse = batch.poisoned_output(shape)
    work = decode_work(
        shape, batch.q.dtype, batch.q_pos, batch.kv_len,
        rows=batch.decode_rows, new=new is not None, prefixes=prefixes, programs=programs,
        quantized=batch.scales is not None,
    )  # fmt: skip
    decode_attention(
        batch.q, batch.k_pages, batch.v_pages, batch.table, out, lse, shape, work, batch.q_pos, new, batch.scales
    )  # fmt: skip
    assert not work.counters.any()
    return out, lse


def write_slots(batch: PagedBatch) -> Tensor:
    """Where each decode row's newest token belongs."""
    rows, page_size = batch.decode_rows, batch.k_pages.shape[2]
    at = batch.q_pos[:rows]
    return batch.table[torch.arange(rows, device=at.device), at // page_size].long() * page_size + at % page_size


def with_new_tokens(batch: PagedBatch, shape: AttentionShape, rotary: int, norm: bool) -> tuple[NewTokens, PagedBatch]:
    """Gives a batch of decode rows new random tokens: (what the kernel gets, the batch once they are written).

    In the batch itself the queries are then not rotated and the new tokens' slots hold NaN, which nobody may read.
    """
    rows, dtype, device = batch.decode_rows, batch.q.dtype, batch.q.device
    heads = shape.q_heads + 2 * shape.kv_heads
    merged = torch.randn(rows, heads, shape.dim, device=device).to(dtype)
    q, k, v = merged.split((shape.q_heads, shape.kv_heads, shape.kv_heads), 1)
    angles = torch.rand(int(batch.q_pos.max()) + 1, rotary // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    weights = torch.rand(2, shape.dim, device=device).to(dtype).unbind() if norm else (None, None)
    slots = write_slots(batch)
    cache = batch.cache()
    rotated = rope_write_reference(
        q, k, v, cos_sin, batch.q_pos[:rows], cache.k, cache.v, slots, *weights, 1e-6, cache.scales
    )  # fmt: skip
    written = replace(batch, q=rotated)
    written.use(cache)
    page_size = batch.k_pages.shape[2]
    spoilt = (batch.k_pages, batch.v_pages) if batch.scales is None else (batch.scales.k, batch.scales.v)
    for plane in spoilt:
        plane[slots // page_size, :, slots % page_size] = NAN
    batch.q = q
    return NewTokens(k, v, cos_sin, slots, *weights, 1e-6), written


def share_prefixes(batch: PagedBatch, groups: list[tuple[list[int], int]], capacity: int) -> SharedPrefixes:
    """Makes the rows of a group share the first tokens, whole pages, of the group's first row."""
    rows, page_size, device = batch.decode_rows, batch.k_pages.shape[2], batch.q.device
    order, starts = [row for members, _ in groups for row in members], [0]
    shared = torch.zeros(rows, dtype=torch.int32)
    for members, tokens in groups:
        starts.append(starts[-1] + len(members))
        shared[members] = tokens
        batch.table[members, : tokens // page_size] = batch.table[members[0], : tokens // page_size].clone()
    starts += [starts[-1]] * (capacity - len(groups))
    order += [row for row in range(rows) if row not in order]
    return SharedPrefixes(
        torch.tensor(order, dtype=torch.int32, device=device),
        torch.tensor(starts, dtype=torch.int32, device=device),
        shared.to(device),
    )


def hide_prefixes(batch: PagedBatch, prefixes: SharedPrefixes) -> None:
    """Points the shared entries of all rows but each span's first to the trash page: nobody may ask them."""
    page_size = batch.k_pages.shape[2]
    starts, order, shared = (part.tolist() for part in (prefixes.starts, prefixes.order, prefixes.shared))
    for begin, end in pairwise(starts):
        for row in order[begin + 1 : end]:
            batch.table[row, : shared[row] // page_size] = 0
