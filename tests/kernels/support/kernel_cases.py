"""Random paged batches with NaN wherever nobody may read, and the rule that errors are held to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.engine.attention.base import LayerKV, Layout
from octavo.kernels.kv_format import KVScales, quantize
from octavo.kernels.paged_attention import AttentionShape, attention_reference

NAN = float("nan")


@dataclass
class PagedBatch:
    """Rows given as (cached tokens, query tokens); rows of one query token come first."""

    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    table: Tensor
    q_start: Tensor
    q_pos: Tensor
    kv_len: Tensor
    decode_rows: int
    q_lens: list[int]
    kv_lens: list[int]
    scales: KVScales | None = None

    def reference(self, shape: AttentionShape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """What attention by the book gives over the numbers in the pages, computed in `dtype`."""
        k, v = self.cache().values()
        return attention_reference(self.q, k, v, self.table, self.q_start, self.q_pos, self.kv_len, shape, dtype)

    def quantized(self, code: torch.dtype) -> PagedBatch:
        """The same keys and values as 8-bit codes; slots that held NaN have codes of something and the scale NaN."""
        planes = [quantize(pages, code) for pages in (self.k_pages, self.v_pages)]
        for codes, scales in planes:
            codes.view(torch.uint8)[scales.isnan()] = 0x33
        return replace(self, k_pages=planes[0][0], v_pages=planes[1][0], scales=KVScales(planes[0][1], planes[1][1]))

    def cache(self) -> LayerKV:
        """A copy of the pages as a layer's cache."""
        scales = None if self.scales is None else KVScales(self.scales.k.clone(), self.scales.v.clone())
        return LayerKV(self.k_pages.clone(), self.v_pages.clone(), 0, scales)

    def use(self, cache: LayerKV) -> None:
        """Takes a copy of a cache's pages."""
        self.k_pages, self.v_pages = cache.k.clone(), cache.v.clone()
        if cache.scales is not None:
            self.scales = KVScales(cache.scales.k.clone(), cache.scales.v.clone())

    def poisoned_output(self, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        """(out, lse) full of NaN."""
        tokens, device = self.q.shape[0], self.q.device
        out = torch.full((tokens, shape.q_heads, shape.v_dim), NAN, dtype=self.q.dtype, device=device)
        return out, torch.full((tokens, shape.q_heads), NAN, device=device)


def paged_batch(
    rows: list[tuple[int, int]],
    shape: AttentionShape,
    page_size: int,
    dtype: torch.dtype,
    device: str = "cpu",
    spare_pages: int = 3,
    shuffled: bool = True,
) -> PagedBatch:
    """Fresh random queries, keys and values in shuffled pages, or in the last ones.

    The trash page, pages nobody owns and the unused end of each row's last page hold NaN; pages wholly before every
    query's window were given back, so their entries point to the trash page.
    """
    rows = sorted(rows, key=lambda row: row[1] != 1)
    kv_lens, q_lens = [kv for kv, _ in rows], [q for _, q in rows]
    counts = [-(-kv // page_size) for kv in kv_lens]
    pages = 1 + sum(counts) + spare_pages
    order = (torch.randperm(pages - 1) + 1 if shuffled else torch.arange(1, pages)).tolist()
    table = torch.zeros((len(rows), max(counts, default=0) + 2), dtype=torch.int32)
    k_pages = torch.full((pages, shape.kv_heads, page_size, shape.dim), NAN, dtype=dtype, device=device)
    v_pages = torch.full((pages, shape.kv_heads, page_size, shape.v_dim), NAN, dtype=dtype, device=device)
    for row, (kv, count) in enumerate(zip(kv_lens, counts)):
        oldest = 0 if shape.window is None else max(0, kv - q_lens[row] - shape.window + 1)
        for page in range(count):
            if (page + 1) * page_size <= oldest:
                continue
            table[row, page] = order.pop()
            used = min(page_size, kv - page * page_size)
            for plane in (k_pages, v_pages):
                values = torch.randn((shape.kv_heads, used, plane.shape[3]), device=device)
                plane[int(table[row, page]), :, :used] = values.to(dtype)
    ends = torch.tensor([0, *q_lens]).cumsum(0)
    positions = [torch.arange(max(0, kv - q), max(0, kv - q) + q) for kv, q in rows]
    return PagedBatch(
        q=torch.randn((int(ends[-1]), shape.q_heads, shape.dim), device=device).to(dtype),
        k_pages=k_pages,
        v_pages=v_pages,
        table=table.to(device),
        q_start=ends.int().to(device),
        q_pos=torch.cat(positions).to(device),
        kv_len=torch.tensor(kv_lens, dtype=torch.int32, device=device),
        decode_rows=sum(q == 1 for q in q_lens),
        q_lens=q_lens,
        kv_lens=kv_lens,
    )


def layout_of(batch: PagedBatch, page_size: int, *, max_q: int | None = None, max_kv: int | None = None) -> Layout:
    """The batch as the engine would describe it; `max_q` and `max_kv` as bounds instead of the lengths themselves."""
    rows = torch.repeat_interleave(torch.arange(len(batch.q_lens)), torch.tensor(batch.q_lens)).to(batch.q.device)
    slots = batch.table[rows, batch.q_pos // page_size].long() * page_size + batch.q_pos % page_size
    return Layout(
        q_start=batch.q_start,
        q_pos=batch.q_pos,
        kv_len=batch.kv_len,
        tables=(batch.table,),
        write_slots=(slots,),
        page_size=page_size,
        num_rows=len(batch.q_lens),
        num_tokens=batch.q.shape[0],
        num_decode_rows=batch.decode_rows,
        max_q=max_q or max(batch.q_lens),
        max_kv=max_kv or max(batch.kv_lens),
        q_lens=tuple(batch.q_lens),
        kv_lens=tuple(batch.kv_lens),
    )


def assert_as_good_as_torch(actual: Tensor, torchs: Tensor, exact: Tensor, factor: float = 2.0) -> None:
    """||actual - exact|| is at most `factor` times that of torch's own result in the same type (NaN never passes).

    The slack is for cases where torch happens to be exact, and in float32 for tanh made from exp: a soft-cap of 50
    makes half a unit of its last place 25.
    """
    scale = exact.double().norm().clamp(min=1e-30)
    error = ((actual.double() - exact.double()).norm() / scale).item()
    allowed = ((torchs.double() - exact.double()).norm() / scale).item()
    slack = torch.finfo(actual.dtype).eps * (25 if actual.dtype == torch.float32 else 0.1)
    assert error <= factor * allowed + slack, f"error {error:.3g}, torch's own {allowed:.3g}"
