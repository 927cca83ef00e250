"""What would keep a model from loading, found out from its headers before anything else is given up for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.app.config.sizes import format_size
from octavo.app.library.fit import Fit, alternatives, best_fitting, estimate, sketch_path, wish_of

if TYPE_CHECKING:
    from octavo.app.config import Config
    from octavo.engine.load.checkpoint import Checkpoint

log = logging.getLogger(__name__)


def require_loadable(path: Path, config: Config, held_bytes: int = 0) -> None:
    """Checks tensor names, shapes, formats and sizes, and that the weights fit into memory.

    `held_bytes` is what the loaded model would give back; if there is one, the tokenizer is tried as well. Raises
    the engine's errors: CheckpointError, UnsupportedModelError, LoadError, MemoryExhaustedError, DeviceError.
    """
    from octavo.engine.errors import DeviceError, MemoryExhaustedError
    from octavo.engine.load.checkpoint import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        check_tensors(checkpoint)
        if held_bytes:
            checkpoint.load_tokenizer()
    sketch, wish = sketch_path(path), wish_of(config)
    try:
        fit = estimate(sketch, wish, held_bytes)
    except DeviceError:
        raise
    except Exception:  # the engine itself is the judge of what the estimate does not understand
        log.warning("What %s needs could not be estimated", path, exc_info=True)
        return
    if fit.weight_bytes > fit.available_bytes:
        raise MemoryExhaustedError(_too_large(fit), remedy=_remedy(fit, alternatives(sketch, wish, held_bytes)))


def check_tensors(checkpoint: Checkpoint) -> None:
    """All that loading checks of a checkpoint's headers, whichever way the model runs."""
    from octavo.engine.model.build import check_checkpoint
    from octavo.engine.model.spec import has_own_decoder

    if has_own_decoder(checkpoint.config):
        check_checkpoint(checkpoint)
    else:
        from octavo.engine.model.foreign import check_foreign

        check_foreign(checkpoint)


def _too_large(fit: Fit) -> str:
    kept = "" if fit.quantization == "none" else f" as {fit.quantization}"
    free = f"{format_size(fit.available_bytes)} are free"
    if fit.held_bytes:
        free += ", the loaded model's memory counted"
    return f"The weights of {fit.name}{kept} need {format_size(fit.weight_bytes)} on {fit.device}; {free}."


def _remedy(fit: Fit, others: list[Fit]) -> str:
    better = best_fitting([other for other in others if other.quantization != fit.quantization])
    if better is None:
        return "Choose a smaller model, or close programs that use the memory."
    return f"With model.quantization: {better.quantization} they need about {format_size(better.weight_bytes)}."
