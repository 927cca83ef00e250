"""Where "auto" becomes a value: each function takes what was asked and what is there, and logs why it chose."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from octavo.engine.attention.base import CacheGroup
from octavo.engine.config import EngineConfig
from octavo.engine.errors import DeviceError, MemoryExhaustedError
from octavo.engine.memory.kv_cache import page_bytes, share_pages
from octavo.kernels.kv_format import NAMES, is_quantized

log = logging.getLogger(__name__)

GIB = 1 << 30
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KV_DTYPES = DTYPES | {name: dtype for dtype, name in NAMES.items()}
CUDA_RESERVE_BYTES = GIB  # activations, library workspaces, graphs, and what the desktop may want meanwhile
LEAST_BYTES_PER_TOKEN = 2048
CHATS_KEPT = 16  # full chats the automatic cache holds if they fit, and on a GPU more while half of it stays free


def resolve_device(wanted: str) -> tuple[torch.device, str | None]:
    """The device, and a notice if it is not what a user might expect. DeviceError if one was asked for by name."""
    if wanted == "cpu":
        return torch.device("cpu"), None
    if torch.cuda.is_available():
        device = torch.device("cuda:0" if wanted in ("auto", "cuda") else wanted)
        if (device.index or 0) >= torch.cuda.device_count():
            raise DeviceError(
                f"There is no CUDA device {device.index}; {torch.cuda.device_count()} were found.",
                remedy="Set model.device to cuda:0 or auto.",
            )
        log.info("device %s: %s", device, torch.cuda.get_device_name(device))
        return device, None
    reason = cuda_reason()
    if wanted != "auto":
        raise DeviceError(f"{wanted} was asked for, but {reason}.", remedy="Set model.device to cpu or auto.")
    return torch.device("cpu"), f"Running on the CPU: {reason}."


def cuda_reason() -> str:
    """Why CUDA cannot be used. What is missing first is said first: a CUDA build of torch does nothing by itself."""
    if not _has_nvidia_driver():
        return "no NVIDIA driver was found"
    if torch.version.cuda is None:
        return f"there is an NVIDIA driver, but the installed torch {torch.__version__} is built without CUDA"
    return f"the NVIDIA driver offers no GPU that torch {torch.__version__} (CUDA {torch.version.cuda}) can use"


def _has_nvidia_driver() -> bool:
    """Whether the driver's own library is there."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def resolve_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """16 bit where the hardware multiplies it natively, float32 elsewhere."""
    if wanted != "auto":
        return DTYPES[wanted]
    if device.type == "cuda":
        dtype = torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    else:
        dtype = torch.bfloat16 if _cpu_has_bf16() else torch.float32
    log.info("dtype %s: what %s computes natively", dtype, device)
    return dtype


def resolve_kv_dtype(wanted: str, model_dtype: torch.dtype) -> torch.dtype:
    """The cache's dtype: the model's own unless another is asked for. int8 and float8_e4m3fn mean codes with scales."""
    return model_dtype if wanted == "auto" else KV_DTYPES[wanted]


def kv_dtype_name(dtype: torch.dtype) -> str:
    """As config.yaml calls it."""
    return next(name for name, known in KV_DTYPES.items() if known == dtype)


def kv_dtype_notice(kv_dtype: torch.dtype, device: torch.device) -> str | None:
    """What a user may not expect of such a cache on such a device."""
    if is_quantized(kv_dtype) and device.type == "cpu":
        return "On the CPU an 8-bit cache saves memory but costs speed: plain torch reads it, not the compiled kernels."
    return None


def resolve_context(config: EngineConfig, max_positions: int) -> int:
    """The context that is aimed at before the cache is sized: what was asked for, at most the model's own."""
    return min(config.context_length or max_positions, max_positions)


def bound_context(context_length: int, free_bytes: int) -> int:
    """The context with which a model is built: rotary tables of a claimed length must not fill the memory that the
    cache, sized later, would find too small for it anyway. Real models keep more than this a token."""
    return max(1, min(context_length, free_bytes // LEAST_BYTES_PER_TOKEN))


def _cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 (AVX512-BF16 or AMX)."""
    try:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    except (AttributeError, RuntimeError):
        return False


def resolve_threads(wanted: int | None) -> int:
    """Threads of a step on the CPU: the physical cores, since two threads of one core share its multipliers."""
    if wanted is not None:
        return wanted
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def resolve_chunk(wanted: int | None, device: torch.device) -> int:
    """Prompt tokens a step reads at most, of one prompt or several; with so many the weights' traffic hardly counts."""
    return max(1, wanted or (512 if device.type == "cpu" else 8192))


def free_memory(device: torch.device) -> int:
    """Bytes that could be taken now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What the KV cache may take: the context of one chat in tokens, the page size, and pages a group."""

    context_length: int
    page_size: int
    num_pages: tuple[int, ...]
    notice: str | None = None


def resolve_cache(
    config: EngineConfig,
    groups: Sequence[CacheGroup],
    max_positions: int,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> CacheSize:
    """Sizes the cache from the memory free now, after the weights are loaded. One full chat always fits.

    Raises MemoryExhaustedError if not even a short one does.
    """
    free = free_memory(device)
    limit = kv_budget(config, free, device)
    per_token = sum(page_bytes(group, 1, kv_dtype) for group in groups)
    wanted = resolve_context(config, max_positions)
    notice = None
    if config.context_length and config.context_length > max_positions:
        notice = f"context_length {config.context_length} was cut to the model's own {max_positions}."
    fits = longest_chat(groups, limit, kv_dtype, config.page_size)
    if fits < min(wanted, 64):
        raise MemoryExhaustedError(
            f"{limit / GIB:.2f} GiB for keys and values hold a chat of {max(0, fits)} tokens.",
            remedy="Raise engine.kv_memory, choose a smaller model, or free memory on the device.",
        )
    if fits < wanted:
        notice = f"The context was cut from {wanted} to {fits} tokens: {limit / GIB:.2f} GiB hold no more."
        wanted = fits
    chats = max(1, min(CHATS_KEPT, config.max_running))
    if not config.paged_attention:
        page_size = wanted
        slots = min(limit // (per_token * wanted), config.max_running + CHATS_KEPT)
        if config.kv_memory_bytes is None and config.kv_memory_share is None:
            slots = min(slots, max(chats, config.max_running if device.type == "cuda" else chats) + 1)
        pages = [max(2, int(slots))] * len(groups)
    else:
        page_size = config.page_size
        budget = limit
        if config.kv_memory_bytes is None and config.kv_memory_share is None:
            chat = per_token * (wanted + page_size)
            roomy = min(free // 2, chat * (config.max_running + 1)) if device.type == "cuda" else 0
            budget = min(limit, max(roomy, chat * (chats + 1)))
        chunk = resolve_chunk(config.prefill_chunk, device)
        pages = share_pages(groups, budget, page_size, kv_dtype, wanted, chunk)
    if notice:
        log.warning("%s", notice)
    log.info("context %d tokens, %s pages of %d tokens", wanted, " and ".join(map(str, pages)), page_size)
    return CacheSize(wanted, page_size, tuple(pages), notice)


def kv_budget(config: EngineConfig, free: int, device: torch.device) -> int:
    """Bytes that keys and values may take of what is free once the weights are there. Raises MemoryExhaustedError."""
    if config.kv_memory_bytes is not None:
        if config.kv_memory_bytes > free:
            raise MemoryExhaustedError(
                f"engine.kv_memory is {config.kv_memory_bytes / GIB:.2f} GiB; {free / GIB:.2f} are free on {device}.",
                remedy="Lower engine.kv_memory or set it to auto.",
            )
        return config.kv_memory_bytes
    if config.kv_memory_share is not None:
        return int(free * config.kv_memory_share)
    if device.type == "cuda":
        return max(0, int(free * 0.92) - CUDA_RESERVE_BYTES)
    return int(free * 0.25)


def longest_chat(groups: Sequence[CacheGroup], limit: int, dtype: torch.dtype, page_size: int) -> int:
    """Tokens of the longest chat whose pages fit into `limit` bytes, every group keeping all of them."""
    per_page = sum(page_bytes(group, page_size, dtype) for group in groups)
    return max(0, limit // per_page - 2) * page_size
