"""The one interface between models and attention: what is cached, where a step's tokens stand, and who computes.

Shapes: T tokens of a step, R rows (requests), P logical pages a row, Hq/Hkv query and KV heads, D head size.
KV planes are laid out `[pages, Hkv, page_size, D]`: a head's page is one contiguous tile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from octavo.kernels.kv_format import KVScales, dequantize, head_bytes

TRASH_PAGE = 0  # physical page 0 of every pool: padded rows write there, nobody reads it as meant


@dataclass(frozen=True, slots=True)
class Plane:
    """One named tensor a layer keeps per cached token (`per="token"`) or per page."""

    name: str  # "k", "v"
    heads: int
    dim: int
    per: Literal["token", "page"] = "token"


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that cache alike and therefore share a page table. `window`: only so many newest tokens are attended."""

    name: str
    layers: tuple[int, ...]  # model layer indices; the n-th uses the n-th slice of the group's tensors
    planes: tuple[Plane, ...]
    window: int | None = None
    shareable: bool = True

    @property
    def numel_per_token(self) -> int:
        """Cached elements a token needs over all layers of the group."""
        return len(self.layers) * sum(p.heads * p.dim for p in self.planes if p.per == "token")

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Cached bytes a token needs over all layers of the group, the scales of 8-bit codes included."""
        return len(self.layers) * sum(p.heads * head_bytes(p.dim, dtype) for p in self.planes if p.per == "token")


@dataclass(frozen=True, slots=True)
class AttnSpec:
    """How one layer attends. `window` counts the query itself: a query at p sees keys p-window+1 .. p."""

    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    causal: bool = True


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The cache of one layer: `k` [pages, Hkv, page_size, Dk], `v` [pages, Hkv, page_size, Dv], its group's index.

    Planes of int8 or float8_e4m3fn are codes, with `scales` beside them.
    """

    k: Tensor
    v: Tensor
    group: int
    scales: KVScales | None = None

    def values(self) -> tuple[Tensor, Tensor]:
        """All of k and v as the numbers they stand for."""
        if self.scales is None:
            return self.k, self.v
        return dequantize(self.k, self.scales.k), dequantize(self.v, self.scales.v)


@dataclass(frozen=True, slots=True)
class Cascade:
    """Which decode rows begin with the same physical pages of a group, so that a backend may read them once.

    int32 on the device, so that a captured graph follows what changes: span s is the rows order[starts[s]] ..
    order[starts[s + 1] - 1], which share their first shared[row] tokens; 0 in rows of no span. Shared tokens are whole
    pages, all cached before this step and attended to by every row of the span. Spans may be empty.
    """

    order: Tensor  # [num_decode_rows], rows of a span next to one another
    starts: Tensor  # [spans + 1]
    shared: Tensor  # [num_decode_rows]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a step's tokens stand. Tokens of a row are adjacent; rows with exactly one query token come first.

    Device tensors; the plain ints are bounds the host knows (grids depend on nothing else). A logical page of a
    windowed group that was given back points to TRASH_PAGE; it lies outside every query's window.
    """

    q_start: Tensor  # int32 [R + 1], row r's tokens are q_start[r] .. q_start[r + 1]
    q_pos: Tensor  # int64 [T], absolute position of each token
    kv_len: Tensor  # int32 [R], cached tokens of the row once this step's are written
    tables: tuple[Tensor, ...]  # one a group: int32 [R, P], physical page of each logical page
    write_slots: tuple[Tensor, ...]  # one a group: int64 [T], physical_page * page_size + offset
    page_size: int
    num_rows: int
    num_tokens: int
    num_decode_rows: int  # the first so many rows have one query token each
    max_q: int  # most query tokens of a row
    max_kv: int  # at least every kv_len
    q_lens: tuple[int, ...] = ()  # host copy, one a row; empty in captured graphs, where only bounds are known
    kv_lens: tuple[int, ...] = ()
    shared_writes: bool = False  # rows attend to keys other rows bring in this step: write all before any is read
    cascades: tuple[Cascade | None, ...] = ()  # one a group, or none at all: reading shared pages once is optional


class Plan(ABC):
    """What a backend prepared for one step."""

    layout: Layout


class AttentionBackend(ABC):
    """Writes keys and values into pages and attends over them."""

    name: str
    capturable: bool = False  # plan and kernels may be captured into a CUDA graph

    @abstractmethod
    def supports(self, spec: AttnSpec, dtype: torch.dtype, device: torch.device) -> str | None:
        """None, or one sentence why this backend cannot serve such a layer."""

    @abstractmethod
    def plan(self, layout: Layout, groups: Sequence[CacheGroup]) -> Plan:
        """Prepares a step. Called once a step, before any layer."""

    @abstractmethod
    def write(self, plan: Plan, kv: LayerKV, k: Tensor, v: Tensor) -> None:
        """Stores k [T, Hkv, Dk] and v [T, Hkv, Dv] at the step's write slots.

        Into an 8-bit cache they are rounded here, once: every query, of this step or a later one, sees the same values.
        """

    @abstractmethod
    def attend(
        self, plan: Plan, spec: AttnSpec, kv: LayerKV, q: Tensor, out: Tensor, lse: Tensor | None = None
    ) -> None:
        """Fills out [T, Hq, Dv] (contiguous) from q [T, Hq, Dk] over the cached keys of each token's row.

        `lse` float32 [T, Hq], if given, gets the natural log-sum-exp of the scaled scores; nothing attended: (0, -inf).
        """


@dataclass(slots=True)
class AttentionStep:
    """All a model sees of attention during one forward: the backend, its plan, and the cache of every layer."""

    backend: AttentionBackend
    plan: Plan
    layers: Sequence[LayerKV]  # by model layer index

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See AttentionBackend.write."""
        self.backend.write(self.plan, self.layers[layer], k, v)

    def attend(self, layer: int, spec: AttnSpec, q: Tensor) -> Tensor:
        """Returns [T, Hq, Dv]; keys and values of this step must have been written."""
        out = torch.empty((q.shape[0], spec.q_heads, spec.v_dim), dtype=q.dtype, device=q.device)
        self.backend.attend(self.plan, spec, self.layers[layer], q, out)
        return out
