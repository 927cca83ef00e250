"""Attention in plain torch: the reference for every other backend and the one that runs on the CPU.

Decode rows are computed together: their pages are gathered with one index_select a plane, and the query heads of a KV
head become the rows of one small product. Longer pieces go row by row. Everything that does not depend on the layer
(indices, masks) is prepared once a step and kept in the plan. 8-bit codes are gathered as they are, with their scales,
and become numbers of the query's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.engine.attention.base import AttentionBackend, AttnSpec, CacheGroup, LayerKV, Layout, Plan
from octavo.kernels.kv_format import as_bytes, dequantize, quantize

MAX_TILE = 64  # tokens gathered as one run; a larger page (paging off: a whole context) is read as several tiles
MASKED_QUERIES = 256  # queries of a chunk that needs a mask; the mask is [256, keys]
WORTH_A_SPLIT = 1024  # keys of padding (rows x tokens) that cost more than a second call for the shorter rows
MAX_GATHER = 1 << 27  # elements of a plane gathered at once for decode rows: 256 MiB in 16 bit
MAX_SCORES = 1 << 24  # elements of a score matrix that is really made (soft-cap, lse): 64 MiB in float32


class TorchBackend(AttentionBackend):
    """Any device, any floating dtype, any head sizes. Scores and softmax are float32 at least.

    Slots no query may see (the unused end of a page, the trash page, a freed page) are never read into a result,
    whatever they hold. A windowed query without keys, or a row without any, gives (0, -inf).
    """

    name = "torch"

    def supports(self, spec: AttnSpec, dtype: torch.dtype, device: torch.device) -> str | None:
        if spec.q_heads % spec.kv_heads:
            return f"{spec.q_heads} query heads cannot be grouped over {spec.kv_heads} KV heads."
        return None

    def plan(self, layout: Layout, groups: Sequence[CacheGroup]) -> TorchPlan:
        return TorchPlan(layout, groups)

    def write(self, plan: Plan, kv: LayerKV, k: Tensor, v: Tensor) -> None:
        assert isinstance(plan, TorchPlan)
        index = plan.write_index(kv.group)
        scales = (None, None) if kv.scales is None else (kv.scales.k, kv.scales.v)
        for plane, scale, new in zip((kv.k, kv.v), scales, (k, v)):
            rows = new.reshape(-1, plane.shape[-1])
            if scale is None:
                plane.view(-1, plane.shape[-1]).index_copy_(0, index, rows.to(plane.dtype))
                continue
            codes, factors = quantize(rows, plane.dtype)
            as_bytes(plane).view(-1, plane.shape[-1]).index_copy_(0, index, as_bytes(codes))
            scale.view(-1).index_copy_(0, index, factors)

    def attend(
        self, plan: Plan, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None = None
    ) -> None:
        assert isinstance(plan, TorchPlan)
        for decode in plan.decode_pieces(kv.group, spec.window):
            if decode.rows is not None:
                _attend_some(decode, decode.rows, spec, kv, q, out, lse)
                continue
            rows = plan.layout.num_decode_rows
            if rows == len(q):
                _attend_decode(decode, spec, kv, q, out, lse)
                return
            _attend_decode(decode, spec, kv, q[:rows], out[:rows], None if lse is None else lse[:rows])
        for piece in plan.prefill_pieces(kv.group, spec.window):
            at = slice(piece.q_start, piece.q_start + piece.q_len)
            _attend_prefill(plan, piece, spec, kv, q[at], out[at], None if lse is None else lse[at])


@dataclass(slots=True)
class DecodePiece:
    """Which tiles some decode rows read. Row b's keys stand at `[begin, end)` of the S gathered slots.

    A row shorter than the longest repeats its own first tile; slots outside its keys are zeroed and masked.
    """

    rows: Tensor | None  # int64 [B], None: all decode rows, in order
    tiles: Tensor  # int64 [B * Hkv * n]
    tile: int  # tokens a tile
    empty_rows: bool  # some row has no key at all
    begin: int | None  # if all rows agree: the gathered keys are cut to [begin, end), unless that is all of them
    end: int | None
    visible: Tensor | None  # else: bool [B, S]
    unseen: Tensor | None  # and int64 indices in [B * Hkv * S] of slots that may hold anything: they are zeroed
    masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def additive_mask(self, dtype: torch.dtype) -> Tensor:
        """0 where visible, -inf elsewhere, [B, 1, 1, S]; only where rows differ."""
        if dtype not in self.masks:
            assert self.visible is not None
            zero = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            self.masks[dtype] = zero.masked_fill_(~self.visible, float("-inf"))[:, None, None]
        return self.masks[dtype]


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """One row's query tokens and the tiles of the keys they may see: positions [first_key, kv_len)."""

    q_start: int
    q_len: int
    kv_len: int
    first_key: int
    tiles: Tensor  # int64 [Hkv * n]
    tile: int


class TorchPlan(Plan):
    """One step's indices and masks, each made when a layer first asks and shared by all layers of its kind."""

    def __init__(self, layout: Layout, groups: Sequence[CacheGroup]) -> None:
        self.layout = layout
        self._heads = [group.planes[0].heads for group in groups]
        self._widths = [max(plane.heads * plane.dim for plane in group.planes) for group in groups]
        self._kv_lens = layout.kv_lens or tuple(layout.kv_len.tolist())
        self._q_lens = layout.q_lens or tuple(layout.q_start.diff().tolist())
        self._tile = next(
            size for size in range(min(MAX_TILE, layout.page_size), 0, -1) if layout.page_size % size == 0
        )
        self._writes: dict[int, Tensor] = {}
        self._decodes: dict[tuple[int, int | None], tuple[DecodePiece, ...]] = {}
        self._prefills: dict[tuple[int, int | None], tuple[PrefillPiece, ...]] = {}
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def write_index(self, group: int) -> Tensor:
        """Rows of a plane seen as [pages * Hkv * page_size, D], for each token and head: int64 [T * Hkv]."""
        if group not in self._writes:
            slots, size, heads = self.layout.write_slots[group], self.layout.page_size, self._heads[group]
            first = (slots // size) * (heads * size) + slots % size
            steps = torch.arange(heads, device=slots.device) * size
            self._writes[group] = (first[:, None] + steps).view(-1)
        return self._writes[group]

    def decode_pieces(self, group: int, window: int | None) -> tuple[DecodePiece, ...]:
        """All decode rows in one piece, unless their lengths differ so much that padding would cost more."""
        key = (group, window)
        if key not in self._decodes:
            rows = list(range(self.layout.num_decode_rows))
            parts = self._split_rows(group, window, rows) if rows else []
            self._decodes[key] = tuple(
                self._make_decode_piece(group, window, part, whole=len(parts) == 1) for part in parts
            )
        return self._decodes[key]

    def prefill_pieces(self, group: int, window: int | None) -> tuple[PrefillPiece, ...]:
        key = (group, window)
        if key not in self._prefills:
            rows = range(self.layout.num_decode_rows, self.layout.num_rows)
            starts = [self.layout.num_decode_rows]
            for row in rows:
                starts.append(starts[-1] + self._q_lens[row])
            self._prefills[key] = tuple(
                self._make_prefill_piece(group, window, row, start)
                for row, start in zip(rows, starts)
                if self._q_lens[row]
            )
        return self._prefills[key]

    def causal_mask(
        self, window: int | None, dtype: torch.dtype, queries: int, keys: int, device: torch.device
    ) -> Tensor:
        """Additive [queries, keys] for the last `queries` of `keys` positions, cut from one mask a step.

        The mask depends only on key minus query position, so all chunks share the lower right corner of the largest.
        """
        size = max(queries, MASKED_QUERIES)
        width = max(keys, self.layout.max_kv, size)
        if window is not None:
            width = min(width, size + window - 1)
        mask = self._masks.get((window, dtype))
        if mask is None or mask.shape[0] < queries or mask.shape[1] < keys:
            mask = torch.full((size, width), float("-inf"), dtype=dtype, device=device)
            if window is None:
                mask = mask.triu_(width - size + 1)
            else:
                mask = mask.triu(width - size + 1).add_(mask.tril(width - size - window))
            self._masks[window, dtype] = mask
        corner = mask[mask.shape[0] - queries :, mask.shape[1] - keys :]
        return corner if device.type == "cpu" else corner.contiguous()  # CUDA's kernels want aligned rows

    def _split_rows(self, group: int, window: int | None, rows: list[int]) -> list[list[int]]:
        """Rows in parts of similar length, longest first; one part keeps the order of the rows."""
        lengths = [end if window is None else min(end, window) for end in self._kv_lens]
        limit = max(1, MAX_GATHER // (self._widths[group] * (max(lengths[row] for row in rows) + self._tile)))
        if max(lengths[row] for row in rows) * len(rows) - sum(lengths[row] for row in rows) < WORTH_A_SPLIT:
            return [rows[at : at + limit] for at in range(0, len(rows), limit)]
        rest, parts = sorted(rows, key=lambda row: -lengths[row]), []
        while rest:
            savings = [(len(rest) - at) * (lengths[rest[0]] - lengths[row]) for at, row in enumerate(rest)]
            best = max(range(len(rest)), key=savings.__getitem__)
            cut = best if savings[best] >= WORTH_A_SPLIT else len(rest)
            parts += [rest[at : min(at + limit, cut)] for at in range(0, cut, limit)]
            rest = rest[cut:]
        return parts if len(parts) > 1 else [rows]

    def _make_decode_piece(self, group: int, window: int | None, chosen: list[int], *, whole: bool) -> DecodePiece:
        rows, tile, heads = len(chosen), self._tile, self._heads[group]
        ends = [self._kv_lens[row] for row in chosen]
        starts = [0 if window is None else max(0, end - window) for end in ends]
        firsts = [start // tile for start in starts]
        counts = [max(1, -(-end // tile) - first) for first, end in zip(firsts, ends)]
        widest = max(counts)
        begins = [start - first * tile for first, start in zip(firsts, starts)]
        stops = [end - first * tile for first, end in zip(firsts, ends)]
        steps = torch.arange(widest)
        if rows == 1:
            logical = (steps + firsts[0])[None]
        else:
            count, first = torch.tensor(counts)[:, None], torch.tensor(firsts)[:, None]
            logical = torch.where(steps < count, steps, 0) + first
        device = self.layout.tables[group].device
        index = None if whole else torch.tensor(chosen).to(device, non_blocking=True)
        tiles = self._physical_tiles(group, slice(0, rows) if index is None else index, logical)
        visible = unseen = begin = end = None
        if min(begins) == max(begins) and min(stops) == max(stops):
            whole = begins[0] == 0 and stops[0] == widest * tile
            begin, end = (None, None) if whole else (begins[0], stops[0])
        else:
            slots, stop = torch.arange(widest * tile), torch.tensor(stops)[:, None]
            shown = (slots >= torch.tensor(begins)[:, None]) & (slots < stop)
            # Slots before `begin` and a repeated full tile hold the row's own tokens: masking them is enough.
            row, slot = (
                torch.where(slots < torch.tensor(counts)[:, None] * tile, slots, slots % tile) >= stop
            ).nonzero(as_tuple=True)
            hidden = (row * heads)[:, None] + torch.arange(heads)
            unseen = (hidden * (widest * tile) + slot[:, None]).view(-1).to(device, non_blocking=True)
            visible = shown.to(device, non_blocking=True)
        return DecodePiece(index, tiles, tile, min(ends) == 0, begin, end, visible, unseen)

    def _make_prefill_piece(self, group: int, window: int | None, row: int, q_start: int) -> PrefillPiece:
        q_len, kv_len, tile = self._q_lens[row], self._kv_lens[row], self._tile
        first_key = 0 if window is None else max(0, kv_len - q_len - window + 1)
        first_tile = first_key // tile
        logical = torch.arange(first_tile, -(-kv_len // tile))[None]
        tiles = self._physical_tiles(group, slice(row, row + 1), logical)
        return PrefillPiece(q_start, q_len, kv_len, first_key, tiles, tile)

    def _physical_tiles(self, group: int, rows: slice | Tensor, logical: Tensor) -> Tensor:
        """Rows of a plane seen as [pages * Hkv * tiles, tile * D] for logical tile numbers [B, n]: [B * Hkv * n]."""
        table, heads, per_page = (
            self.layout.tables[group][rows],
            self._heads[group],
            self.layout.page_size // self._tile,
        )
        logical = logical.to(table.device, non_blocking=True)
        pages = table.gather(1, logical // per_page if per_page > 1 else logical).long()
        first = pages * (heads * per_page)
        if per_page > 1:
            first += logical % per_page
        steps = torch.arange(heads, device=table.device)[:, None] * per_page
        return (first[:, None] + steps).view(-1)


def _attend_some(
    piece: DecodePiece, rows: Tensor, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None
) -> None:
    part = q.new_empty(len(rows), spec.q_heads, spec.v_dim)
    sums = None if lse is None else lse.new_empty(len(rows), spec.q_heads)
    _attend_decode(piece, spec, kv, q.index_select(0, rows), part, sums)
    out.index_copy_(0, rows, part)
    if lse is not None and sums is not None:
        lse.index_copy_(0, rows, sums)


def _attend_decode(piece: DecodePiece, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None) -> None:
    rows, heads, group = q.shape[0], spec.kv_heads, spec.q_heads // spec.kv_heads
    k, v = (part.view(rows, heads, -1, part.shape[-1]) for part in _gather_kv(kv, piece.tiles, piece.tile, q.dtype))
    if piece.unseen is not None:
        k.view(-1, spec.qk_dim).index_fill_(0, piece.unseen, 0)
        v.view(-1, spec.v_dim).index_fill_(0, piece.unseen, 0)
    elif piece.end is not None:
        k, v = k[:, :, piece.begin : piece.end], v[:, :, piece.begin : piece.end]
    queries = q.reshape(rows, heads, group, spec.qk_dim)
    result = out.view(rows, heads, group, spec.v_dim)
    if q.device.type == "cpu" and spec.softcap is None and lse is None and not piece.empty_rows:
        if k.dtype != q.dtype:
            k, v = k.to(q.dtype), v.to(q.dtype)
        mask = None if piece.visible is None else piece.additive_mask(q.dtype)
        result.copy_(F.scaled_dot_product_attention(queries, k, v, mask, scale=spec.scale))
        return
    hidden = None if piece.visible is None else ~piece.visible[:, None, None]
    values, sums = _dense(queries, k, v, hidden, spec)
    result.copy_(values)
    if lse is not None:
        lse.view(rows, heads, group).copy_(sums)


def _attend_prefill(
    plan: TorchPlan, piece: PrefillPiece, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None
) -> None:
    """One row: keys are cut to exactly those its queries may see, queries are taken in chunks."""
    heads, group, count = spec.kv_heads, spec.q_heads // spec.kv_heads, piece.kv_len - piece.first_key
    begin = piece.first_key % piece.tile
    k, v = (
        part.view(heads, -1, part.shape[-1])[:, begin : begin + count]
        for part in _gather_kv(kv, piece.tiles, piece.tile, q.dtype)
    )
    queries = q.unflatten(1, (heads, group)).permute(1, 2, 0, 3)  # [Hkv, G, q_len, D]
    result = out.unflatten(1, (heads, group)).permute(1, 2, 0, 3)
    past = piece.kv_len - piece.q_len
    windowed = spec.window is not None and piece.kv_len > spec.window
    # On CUDA this is the textbook path, and the library's fused kernels there want masks and keys aligned in ways that
    # slices of them are not.
    plain = q.device.type == "cpu" and spec.softcap is None and lse is None and past >= 0 and count > 0
    needs_mask = windowed or (spec.causal and past > 0)
    if not plain:
        size = max(1, MAX_SCORES // max(1, spec.q_heads * count))
    elif needs_mask:
        size = MASKED_QUERIES
    else:
        size = piece.q_len  # the fused operation needs no mask and makes no [queries, keys] matrix
    for start in range(0, piece.q_len, size):
        stop = min(start + size, piece.q_len)
        first = max(piece.first_key, past + start - spec.window + 1) if spec.window is not None else 0
        last = max(first, past + stop) if spec.causal else piece.kv_len
        keys = slice(first - piece.first_key, last - piece.first_key)
        if plain:
            mask = None
            if needs_mask:
                mask = _chunk_mask(plan, spec, q, stop - start, past + stop, first, last)
            chunk = F.scaled_dot_product_attention(
                queries[:, :, start:stop],
                k[:, None, keys].to(q.dtype).expand(-1, group, -1, -1),
                v[:, None, keys].to(q.dtype).expand(-1, group, -1, -1),
                mask,
                is_causal=spec.causal and mask is None,
                scale=spec.scale,
            )
            result[:, :, start:stop] = chunk
            continue
        hidden = _hidden(spec, past + start, past + stop, first, last, q.device)
        packed, sums = _dense(queries[:, :, start:stop], k[:, keys], v[:, keys], hidden, spec)
        result[:, :, start:stop] = packed
        if lse is not None:
            lse.unflatten(1, (heads, group)).permute(1, 2, 0)[:, :, start:stop] = sums


def _chunk_mask(plan: TorchPlan, spec: AttnSpec, q: Tensor, queries: int, end: int, first: int, last: int) -> Tensor:
    if spec.causal:
        return plan.causal_mask(spec.window, q.dtype, queries, last - first, q.device)
    hidden = _hidden(spec, end - queries, end, first, last, q.device)
    assert hidden is not None
    return torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, float("-inf"))


def _hidden(
    spec: AttnSpec, q_first: int, q_last: int, k_first: int, k_last: int, device: torch.device
) -> Tensor | None:
    """True where the query at a position may not see the key at another; None if all may. bool [queries, keys]."""
    at = torch.arange(q_first, q_last, device=device)[:, None]
    keys = torch.arange(k_first, k_last, device=device)
    hidden = keys > at if spec.causal else None
    if spec.window is not None:
        old = keys <= at - spec.window
        hidden = old if hidden is None else hidden | old
    return hidden


def _gather_kv(kv: LayerKV, tiles: Tensor, tile: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """k and v of those tiles, [n * tile, D] each; of 8-bit codes the numbers they stand for, in `dtype`."""
    k, v = (_gather(plane, tiles, tile).view(-1, plane.shape[-1]) for plane in (kv.k, kv.v))
    if kv.scales is None:
        return k, v
    k_scale, v_scale = (_gather(plane[..., None], tiles, tile).view(-1) for plane in (kv.scales.k, kv.scales.v))
    return dequantize(k, k_scale, dtype), dequantize(v, v_scale, dtype)


def _gather(plane: Tensor, tiles: Tensor, tile: int) -> Tensor:
    """[n, tile * D] of a contiguous plane [pages, Hkv, page_size, D].

    Copied as 8-byte words where that fits: torch splits a copy over threads by its number of elements, and for the keys
    of one chat the threads cost more than the copy (8 instead of 14 us, 55 on average with busy neighbours).
    """
    flat = plane.view(-1, tile * plane.shape[-1])
    size = plane.element_size()
    if flat.shape[1] * size % 8 or flat.storage_offset() * size % 8:
        return as_bytes(flat).index_select(0, tiles).view(plane.dtype)
    return flat.view(torch.int64).index_select(0, tiles).view(plane.dtype)


def _dense(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, spec: AttnSpec) -> tuple[Tensor, Tensor]:
    """Attention by the book, in float32 or wider. q [N, A, B, D] with k, v [N, S, D] or [N, A, S, D].

    Returns the values like q and the log-sum-exp [N, A, B] of the scaled, capped scores.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    if k.dim() == 3:
        k, v = k[:, None], v[:, None]
    scores = (q.to(dtype) * spec.scale) @ k.to(dtype).transpose(-1, -2)
    if spec.softcap is not None:
        scores = (scores / spec.softcap).tanh_().mul_(spec.softcap)
    if hidden is not None:
        scores = scores.masked_fill_(hidden, float("-inf"))
    if not scores.shape[-1]:
        return q.new_zeros((*q.shape[:-1], v.shape[-1])), q.new_full(q.shape[:-1], float("-inf"), dtype=torch.float32)
    sums = torch.logsumexp(scores, -1, keepdim=True)
    weights = (scores - sums.masked_fill(sums == float("-inf"), 0)).exp_()
    return (weights @ v.to(dtype)).to(q.dtype), sums.squeeze(-1).float()
