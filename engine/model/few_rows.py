"""The products of a step with few rows, each in one launch with what stands around it.

A decode step of a desktop reads every weight for a handful of rows, so its products are bound by the memory, and what
counts besides is how few launches there are and how little the memory idles between them. Which rows and shapes are
worth it is kernels/skinny_linear.py's to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.engine.model.parameters import Weights
from octavo.engine.quant.base import Packed, WeightRef
from octavo.engine.quant.plain import PlainFormat
from octavo.kernels import rms_norm
from octavo.kernels.head_argmax import head_argmax
from octavo.kernels.quant_weight import CodedWeight
from octavo.kernels.skinny_linear import Normed, folds_norm, skinny_linear, skinny_linear_add, suits, suits_codes

# times a norm's weights, but not yet divided by its root mean square, a residual stream may leave float16's range
PREPARED_TYPES = (torch.bfloat16,)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the last product left for the norm of its sum."""

    stream: Tensor
    norm: Tensor
    normed: Normed


class FewRows:
    """Runs products of `takes`; `bind` tells it which norms follow, without which it fuses less."""

    def __init__(self) -> None:
        self._next_norms: dict[int, Tensor] = {}  # by the linear whose sum they take
        self._prepared: _Prepared | None = None

    def bind(self, weights: Weights) -> None:
        """Learns which norm follows each sum."""
        self._next_norms.clear()
        layers = weights.layers
        for index, layer in enumerate(layers):
            if layer.router is None and layer.mlp_norm is not None:
                self._next_norms[id(layer.o)] = layer.mlp_norm
            following = layers[index + 1].attn_norm if index + 1 < len(layers) else None
            if following is not None:
                self._next_norms[id(layer.down)] = following

    def takes(self, x: Tensor, ref: WeightRef) -> bool:
        """Whether this product is computed here: of few rows, dense, by resident weights that kernels can read."""
        if not _resident(ref) or not x.is_contiguous():
            return False
        spec, fused = ref.spec, ref.acquire().fused
        if isinstance(ref.format, PlainFormat) or fused is None:
            return suits(x.shape[0], spec.out_dim, spec.in_dim, x.dtype, x.device)
        return suits_codes(x.shape[0], fused, x.dtype, x.device)

    def norm_linear(self, hidden: Tensor, norm: Tensor | None, eps: float, ref: WeightRef, act: str | None) -> Tensor:
        """A linear of the norm of the residual stream [T, in]: [T, out], or its gated activation."""
        prepared, self._prepared = self._prepared, None
        packed = ref.acquire()
        weight = _weight(packed)
        x, squares = hidden, None
        if norm is not None and not folds_norm(hidden, weight, act is not None):
            if prepared is not None and prepared.stream is hidden and prepared.norm is norm:
                x, squares = prepared.normed.x, prepared.normed.squares
            else:
                x = rms_norm.rms_norm(hidden, norm, eps)
            norm = None
        out = skinny_linear(x, weight, packed.bias, norm=norm, squares=squares, eps=eps, act=act)
        ref.release()
        return out

    def linear_add(self, x: Tensor, ref: WeightRef, hidden: Tensor) -> None:
        """Adds a linear of x [T, in] to the residual stream [T, out] in place."""
        norm = self._next_norms.get(id(ref)) if x.dtype in PREPARED_TYPES else None
        packed = ref.acquire()
        normed = skinny_linear_add(x, _weight(packed), packed.bias, hidden, norm)
        ref.release()
        self._prepared = None if normed is None or norm is None else _Prepared(hidden, norm, normed)

    def scores(self, ref: WeightRef, hidden: Tensor) -> Tensor:
        """float32 [T, vocabulary], never rounded to 16 bit, as `greedy` compares them."""
        packed = ref.acquire()
        out = skinny_linear(hidden, _weight(packed), packed.bias, out_dtype=torch.float32)
        ref.release()
        return out

    def greedy(self, ref: WeightRef, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's highest score, float32 [T], and its lowest id, int64 [T]; the scores are not written."""
        packed = ref.acquire()
        best = head_argmax(hidden, _weight(packed), packed.bias)
        ref.release()
        return best


def _resident(ref: WeightRef) -> bool:
    """Weights that stay where they are (a kernel may read them before it has waited for the work before it), as plain
    numbers or in codes that kernels read."""
    if type(ref) is not WeightRef or ref.spec.experts is not None:
        return False
    return isinstance(ref.format, PlainFormat) or ref.acquire().fused is not None


def _weight(packed: Packed) -> Tensor | CodedWeight:
    return packed.weight if packed.fused is None else packed.fused
