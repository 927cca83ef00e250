"""How much of the pages in use is not used."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


def test_a_mixed_batch_wastes_less_than_four_percent_of_its_pages(harness: Callable[..., Any]) -> None:
    rng = random.Random(5)
    h = harness(pages=2000, page_size=16, cache="none", max_running=32, chunk=4096, context_length=2048)
    for index in range(32):
        h.submit(f"r{index}", [rng.randrange(97) for _ in range(rng.randrange(50, 900))], 200)
    worst = 0.0
    for _ in range(150):
        h.step()
        running = h.core.scheduler.running
        held = sum(len(r.pages[0]) for r in running) * 16
        worst = max(worst, 1 - sum(r.num_computed for r in running) / held)
    assert len(running) == 32
    assert worst < 0.04
