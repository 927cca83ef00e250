"""One attention interface and its backends: torch (reference, CPU) and paged Triton."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from octavo.engine.attention.base import AttentionBackend, AttnSpec
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.kernels.kv_format import is_quantized

log = logging.getLogger(__name__)


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    specs: Sequence[AttnSpec],
    fusion: bool,
    kv_dtype: torch.dtype | None = None,
) -> AttentionBackend:
    """The paged Triton kernels where they serve every layer, else plain torch; the reason is logged.

    `kv_dtype` is the cache's, if it is not `dtype`.
    """
    reason = _why_not_triton(device, dtype, specs, fusion)
    if reason is None and is_quantized(kv_dtype or dtype) and any(s.qk_dim % 2 or s.v_dim % 2 for s in specs):
        reason = "8-bit keys and values are read in pairs of channels, and the head size is odd"
    if reason is None:
        from octavo.engine.attention.triton_backend import TritonBackend

        log.info("attention: paged Triton kernels")
        return TritonBackend()
    log.info("attention: torch (%s)", reason)
    return TorchBackend()


def _why_not_triton(device: torch.device, dtype: torch.dtype, specs: Sequence[AttnSpec], fusion: bool) -> str | None:
    if not fusion:
        return "fusion is off"
    if device.type != "cuda":
        return f"the device is {device.type}"
    try:
        from octavo.engine.attention.triton_backend import TritonBackend
    except ImportError as error:
        return f"Triton is not usable: {error}"
    backend = TritonBackend()
    return next((reason for spec in dict.fromkeys(specs) if (reason := backend.supports(spec, dtype, device))), None)
