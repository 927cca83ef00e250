"""The KV tensors behind the pages, one pair a cache group, and how many pages a budget of bytes buys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from octavo.engine.attention.base import CacheGroup, LayerKV
from octavo.engine.errors import UnsupportedModelError
from octavo.kernels.kv_format import KVScales, is_quantized


class KVCache:
    """Tensors [layers of the group, pages, heads, page_size, dim] for k and v of every group; with 8-bit codes also
    their scales, float32 [layers of the group, pages, heads, page_size].

    `layers[i]` is the cache of model layer i. Page 0 of each group is the trash page.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        num_pages: Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.groups = tuple(groups)
        self.num_pages = tuple(num_pages)
        self.page_size = page_size
        self.dtype = dtype
        layers: dict[int, LayerKV] = {}
        self.size_bytes = 0
        for index, (group, pages) in enumerate(zip(self.groups, self.num_pages, strict=True)):
            planes = {plane.name: plane for plane in group.planes}
            if set(planes) != {"k", "v"}:
                raise UnsupportedModelError(f"Cache planes {sorted(planes)} are not supported; only k and v are.")
            tensors, scales = [], []
            for plane in (planes["k"], planes["v"]):
                shape = (len(group.layers), pages, plane.heads, page_size)
                tensors.append(self._room((*shape, plane.dim), dtype, device))
                if is_quantized(dtype):
                    scales.append(self._room(shape, torch.float32, device))
            for slot, layer in enumerate(group.layers):
                beside = KVScales(scales[0][slot], scales[1][slot]) if scales else None
                layers[layer] = LayerKV(k=tensors[0][slot], v=tensors[1][slot], group=index, scales=beside)
        self.layers = [layers[i] for i in sorted(layers)]

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty tensor, but for zeros in its trash page."""
        # Not zeroed: the system hands out untouched pages lazily, so an idle cache costs no memory on the CPU.
        tensor = torch.empty(shape, dtype=dtype, device=device)
        tensor[:, 0].view(torch.uint8).zero_()
        self.size_bytes += tensor.numel() * tensor.element_size()
        return tensor


def page_bytes(group: CacheGroup, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one physical page of a group, all its layers together."""
    return group.bytes_per_token(dtype) * page_size


def pages_of_one_chat(group: CacheGroup, context_length: int, page_size: int, chunk: int) -> int:
    """Pages a chat of the whole context needs at most; a windowed group needs its window, a chunk and the edges."""
    whole = math.ceil(context_length / page_size)
    if group.window is None:
        return whole
    return min(whole, math.ceil((group.window + chunk) / page_size) + 1)


def share_pages(
    groups: Sequence[CacheGroup], budget_bytes: int, page_size: int, dtype: torch.dtype, context_length: int, chunk: int
) -> list[int]:
    """How many physical pages (the trash page included) each group gets out of a budget.

    Full groups get the same number; a windowed group twice the share that a single chat needs, so that the
    cache can keep some prefixes too.
    """
    whole = math.ceil(context_length / page_size)
    shares = [
        1.0 if g.window is None else min(1.0, 2 * pages_of_one_chat(g, context_length, page_size, chunk) / whole)
        for g in groups
    ]
    per_page = sum(share * page_bytes(g, page_size, dtype) for share, g in zip(shares, groups, strict=True))
    trash = sum(page_bytes(g, page_size, dtype) for g in groups)
    full = max(0, int((budget_bytes - trash) / per_page))
    return [int(full * share) + 1 for share in shares]
