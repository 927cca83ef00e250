"""Products that round their activations by tokens, with the norm before them in the launch that rounds."""

from __future__ import annotations

from torch import Tensor

from octavo.engine.quant.base import WeightRef
from octavo.engine.quant.gpu_codes import OfTokens, of_tokens
from octavo.kernels import token_norm


def norm_linear(
    delta: Tensor | None, hidden: Tensor, norm: Tensor | None, eps: float, ref: WeightRef
) -> tuple[Tensor, Tensor] | None:
    """(linear of the normed sum [T, out], sum [T, H]) of the residual stream and what is to be added to it; None if
    the weight is not resident, takes these rows in 16 bits, or if there is no norm."""
    product = _product(hidden, ref)
    if product is None or norm is None or (delta is not None and delta.shape != hidden.shape):
        return None
    x, residual = (hidden, None) if delta is None else (delta, hidden)
    codes, scales, total = token_norm.norm_tokens(x, residual, norm, eps, product.kind)
    out = product.run(codes, scales, ref.acquire(), hidden.dtype)
    ref.release()
    return out, total


def _product(hidden: Tensor, ref: WeightRef) -> OfTokens | None:
    if type(ref) is not WeightRef or ref.spec.experts is not None or not hidden.is_contiguous():
        return None
    return of_tokens(ref.acquire(), hidden.shape[0])
