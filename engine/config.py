"""Settings of one engine, already resolved from files and flags: plain values, no parsing here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Policy = Literal["fcfs", "longest-prefix"]
Speculation = Literal["off", "ngram", "draft", "self", "auto"]
Preemption = Literal["auto", "recompute"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is built from. `None` means "choose": engine/run/resolve.py turns it into a value and logs why."""

    device: str = "auto"  # auto | cpu | cuda | cuda:N
    dtype: str = "auto"  # auto | float32 | float16 | bfloat16
    context_length: int | None = None  # tokens of one chat; None: the model's own, cut to what fits one full chat
    quantization: str = "none"  # a name of engine/quant: what weights are converted to at load
    quantize_head: bool = False  # the output head too
    rounded_folder: str | None = None  # where rounded weights are kept for the next load; None: nowhere
    paged_attention: bool = True  # False: one page of context_length tokens a chat, no sharing
    fusion: bool = True  # False: the textbook graph in plain torch, no kernels, no graphs
    prefix_sharing: bool = True
    page_size: int = 16  # tokens a page holds; small pages waste little, 16 is one tile of a tensor core
    kv_cache_dtype: str = "auto"  # auto = the model's dtype | a plain one | int8 | fp8: 8 bits, read as they are
    kv_memory_bytes: int | None = None  # bytes for keys and values; None: from the memory free now
    kv_memory_share: float | None = None  # or a share (0..1] of the memory free after the weights are loaded
    max_running: int = 64  # rows of a step at most
    queue_limit: int = 256  # waiting requests at most; one more is refused
    prefill_chunk: int | None = None  # prompt tokens of a step at most; None: by device
    scheduler: Policy = "fcfs"
    preemption: Preemption = "recompute"
    target_gap_ms: float = 50.0  # the gap between tokens of a running chat that a chunk of another's prompt may cause
    speculation: Speculation = "off"  # who guesses tokens ahead
    draft_model: str | None = None  # folder or file of the model that guesses for "draft" and "auto"
    draft_tokens: int = 5  # tokens guessed ahead at most
    cpu_threads: int | None = None  # None: chosen by a probe at load
