"""SmoothQuant (Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for LLMs").

Activations that are rounded too have single loud channels; half of their loudness is moved into the weights, where
rounding minds it less (equation 4: s_j = max|X_j|^alpha / max|W_j|^(1 - alpha)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ALPHA = 0.5
_LEAST = 1e-5


def smooth_scales(
    weights: Sequence[Tensor],
    largest: Tensor,
    alpha: float = ALPHA,
    tie: Callable[[Tensor], Tensor] = lambda scales: scales,
) -> Tensor:
    """Factors [in] for the columns of weights [out, in] that read the same inputs, of largest magnitudes [in]; the
    inputs are to be divided by them. `tie` makes factors equal that must be."""
    loud = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    scales = largest.clamp(min=_LEAST).pow(alpha) / loud.clamp(min=_LEAST).pow(1 - alpha)
    return tie(scales).clamp_(min=_LEAST)
