"""The perplexity of a model as it stands on the disk, before and after it was rounded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.perplexity import WINDOW, perplexity
from octavo.engine.quant import PACKED


def measure(
    path: Path, token_ids: Sequence[int], *, packed: bool = False, device: str = "auto", dtype: str = "auto"
) -> float:
    """Loads the model and closes it again. Raises what loading raises. Weights may be expanded, which is faster, unless
    `packed`: activations are rounded only beside weights that stay as they are stored."""
    config = EngineConfig(
        device=device,
        dtype=dtype,
        cpu_threads=torch.get_num_threads(),
        quantization=PACKED if packed else "none",
        context_length=WINDOW + 1,
        prefill_chunk=WINDOW,
        prefix_sharing=False,
        max_running=1,
    )
    engine = Engine.load(str(path), config)
    try:
        return perplexity(engine, token_ids, min(WINDOW, engine.info.context_length - 1)).value
    finally:
        engine.close()
