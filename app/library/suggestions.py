"""A few models of the hub for somebody who has none: free to use without an account, and of a size that fits here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.app.hardware import Hardware
from octavo.app.library.weights import quantizations

FEWEST, MOST = 2, 4
CPU_SHARE = 0.5  # of the free memory: the rest of the system needs some too
GPU_SHARE = 0.85
LARGEST_ON_CPU = 2_100_000_000  # parameters; every token reads all of them, and above this that takes too long
INT4_BYTES = 0.6  # a parameter as int4, with its group's scale and zero point
KEPT_FOR_CHATS_BYTES = 1 << 30
SMALL_MACHINE_KEEPS_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model in bfloat16. `embedding` parameters stay in 16 bit also if the others are converted at load."""

    id: str
    parameters: int
    embedding: int
    quantization: str = "none"

    @property
    def download_bytes(self) -> int:
        return 2 * self.parameters

    @property
    def size_bytes(self) -> int:
        """In memory."""
        if self.quantization == "none":
            return 2 * self.parameters
        return int(2 * self.embedding + INT4_BYTES * (self.parameters - self.embedding))


SUGGESTIONS = (
    Suggestion("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008, 28_311_552),
    Suggestion("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 47_185_920),
    Suggestion("Qwen/Qwen3-0.6B", 751_632_384, 311_164_928),
    Suggestion("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 100_663_296),
    Suggestion("Qwen/Qwen3-1.7B", 2_031_739_904, 622_329_856),
    Suggestion("Qwen/Qwen3-4B", 4_022_468_096, 388_956_160),
    Suggestion("Qwen/Qwen3-8B", 8_190_735_360, 1_244_659_712),
    Suggestion("Qwen/Qwen3-14B", 14_768_307_200, 1_555_824_640),
    Suggestion("Qwen/Qwen3-30B-A3B", 30_532_122_624, 622_329_856),
)


def suggest(hardware: Hardware) -> list[Suggestion]:
    """Two to four models that fit into what is free now, the largest first; fewer only where nothing else fits.

    The first may be one that fits only converted to int4 at load.
    """
    gpu_bytes = max((gpu.free_bytes for gpu in hardware.gpus), default=0)
    budget = gpu_bytes * GPU_SHARE if hardware.gpus else hardware.free_bytes * CPU_SHARE
    able = [model for model in SUGGESTIONS if hardware.gpus or model.parameters <= LARGEST_ON_CPU]
    fitting = [model for model in able if model.size_bytes + KEPT_FOR_CHATS_BYTES <= budget][-MOST:]
    if len(fitting) < FEWEST:  # a small machine: chats are short on it
        fitting = [model for model in able if model.size_bytes + SMALL_MACHINE_KEEPS_BYTES <= budget][-FEWEST:]
    if hardware.gpus and "int4" in quantizations():
        packed = [
            replace(model, quantization="int4")
            for model in SUGGESTIONS
            if not fitting or model.parameters > fitting[-1].parameters
        ]
        packed = [model for model in packed if model.size_bytes + KEPT_FOR_CHATS_BYTES <= budget]
        fitting = [*fitting[-(MOST - 1) :], *packed[-1:]]
    return fitting[::-1]
