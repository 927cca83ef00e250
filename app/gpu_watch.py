"""Notices that the GPU is lost (a driver reset, a pulled eGPU, an error that breaks the CUDA context for good)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from octavo.app.host import ModelHost

log = logging.getLogger(__name__)

CHECK_EVERY_S = 2.0
STUCK_S = 60.0  # an engine that has work and took no step for so long
PATIENCE_S = 20.0  # a GPU that does not answer one small question in this time is as good as lost


async def watch_gpu(
    host: ModelHost,
    on_loss: Callable[[], None],
    *,
    check_every_s: float = CHECK_EVERY_S,
    answers: Callable[[str], bool] | None = None,
) -> None:
    """Ask the GPU whether it still works whenever requests have failed on it, and call `on_loss` once if it does not.

    Runs until it is cancelled or the GPU is lost. `answers` says of a device whether it does.
    """
    asked = answers or gpu_answers
    seen: tuple[int, int] | None = None  # the engine, and its failures so far
    while True:
        await asyncio.sleep(check_every_s)
        engine = host.engine
        if engine is None or not engine.info.device.startswith("cuda"):
            seen = None
            continue
        status = engine.status()
        mark = (id(engine), status.counters.get("failed", 0))
        suspicious = status.state == "failed" or status.progress_s > STUCK_S
        if seen is not None and mark[0] == seen[0]:
            suspicious |= mark[1] > seen[1]
        else:
            suspicious |= mark[1] > 0
        seen = mark
        if suspicious and not await asyncio.to_thread(asked, engine.info.device):
            log.error("The GPU %s does not answer any more.", engine.info.device)
            on_loss()
            return


def gpu_answers(device: str, patience_s: float = PATIENCE_S) -> bool:
    """Whether a small computation on it comes back. Full memory is an answer too."""
    import torch

    outcome: list[bool] = []

    def ask() -> None:
        try:
            outcome.append(bool(torch.ones(8, device=device).sum().item() == 8))
        except torch.cuda.OutOfMemoryError:
            outcome.append(True)
        except RuntimeError as error:
            log.error("Asking the GPU failed: %s", error)
            outcome.append(False)

    asking = threading.Thread(target=ask, name="octavo-ask-gpu", daemon=True)
    asking.start()
    asking.join(patience_s)
    return bool(outcome) and outcome[0]
