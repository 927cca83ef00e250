"""Products that round their activations by tokens, with the norm before them in the launch that rounds, and the gates
after them in the launch that scales."""

from __future__ import annotations

from torch import Tensor

from octavo.engine.quant.base import WeightRef
from octavo.engine.quant.gpu_codes import OfTokens, of_tokens
from octavo.kernels.token_codes import gated_sums
from octavo.kernels.token_norm import norm_tokens


def product_of(delta: Tensor | None, hidden: Tensor, norm: Tensor | None, ref: WeightRef) -> OfTokens | None:
    """How a weight multiplies the normed sum of the residual stream [T, H] and what is to be added to it, if it rounds
    these rows, is resident and dense, and if there is a norm."""
    if type(ref) is not WeightRef or ref.spec.experts is not None or norm is None or not hidden.is_contiguous():
        return None
    return of_tokens(ref.acquire(), hidden.shape[0]) if delta is None or delta.shape == hidden.shape else None


def norm_linear(
    product: OfTokens, delta: Tensor | None, hidden: Tensor, norm: Tensor, eps: float, ref: WeightRef
) -> tuple[Tensor, Tensor]:
    """(linear of the normed sum [T, out], sum [T, H]); may overwrite both inputs."""
    codes, scales, total = _normed(product, delta, hidden, norm, eps)
    out = product.run(codes, scales, ref.acquire(), hidden.dtype)
    ref.release()
    return out, total


def norm_gated(
    product: OfTokens, delta: Tensor | None, hidden: Tensor, norm: Tensor, eps: float, ref: WeightRef, act: str
) -> tuple[Tensor, Tensor]:
    """(gated activation of the merged gate and up projection of the normed sum [T, I], sum [T, H]); may overwrite both
    inputs."""
    codes, scales, total = _normed(product, delta, hidden, norm, eps)
    packed = ref.acquire()
    sums = product.sums(codes, packed)
    out = gated_sums(sums, scales, packed.planes["scale"], packed.bias, act, hidden.dtype)
    ref.release()
    return out, total


def _normed(
    product: OfTokens, delta: Tensor | None, hidden: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, residual = (hidden, None) if delta is None else (delta, hidden)
    return norm_tokens(x, residual, norm, eps, product.kind)
