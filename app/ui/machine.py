"""What the page says about the machine while there is no model yet: its hardware, and models that would suit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.app.hardware import Hardware, look

SHOWN = 3
CPU_SHARE = 0.5  # of the free memory: the rest of the system needs some too
GPU_SHARE = 0.85
BYTES_PER_PARAMETER = 2  # bfloat16
KEPT_FOR_CHATS_BYTES = 1 << 30
LARGEST_ON_CPU = 2_100_000_000  # parameters; every token reads all of them, and above this that takes too long


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model of the hub, free to use without an account."""

    id: str
    parameters: int

    @property
    def size_bytes(self) -> int:
        return self.parameters * BYTES_PER_PARAMETER


SUGGESTIONS = (
    Suggestion("HuggingFaceTB/SmolLM2-360M-Instruct", 362_000_000),
    Suggestion("Qwen/Qwen3-0.6B", 752_000_000),
    Suggestion("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_000_000),
    Suggestion("Qwen/Qwen3-1.7B", 2_032_000_000),
    Suggestion("Qwen/Qwen3-4B", 4_022_000_000),
    Suggestion("Qwen/Qwen3-8B", 8_191_000_000),
    Suggestion("Qwen/Qwen3-14B", 14_768_000_000),
    Suggestion("Qwen/Qwen3-30B-A3B", 30_532_000_000),
)


def suggest(hardware: Hardware) -> list[Suggestion]:
    """The largest models that fit into what is free now, largest first."""
    gpu_bytes = max((gpu.free_bytes for gpu in hardware.gpus), default=0)
    budget = gpu_bytes * GPU_SHARE if hardware.gpus else hardware.free_bytes * CPU_SHARE
    fitting = [
        model
        for model in SUGGESTIONS
        if model.size_bytes + KEPT_FOR_CHATS_BYTES <= budget and (hardware.gpus or model.parameters <= LARGEST_ON_CPU)
    ]
    return fitting[: -SHOWN - 1 : -1]


def describe() -> dict[str, Any]:
    """A message for the page. Takes a moment: asks the drivers."""
    hardware = look()
    return {
        "k": "machine",
        "processor": hardware.processor,
        "cores": hardware.cores,
        "total": hardware.total_bytes,
        "free": hardware.free_bytes,
        "gpus": [{"name": gpu.name, "total": gpu.total_bytes, "free": gpu.free_bytes} for gpu in hardware.gpus],
        "models": [{"id": model.id, "size": model.size_bytes} for model in suggest(hardware)],
    }
