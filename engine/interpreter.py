"""Python itself beside a running engine: its collector of reference cycles, and how threads take turns.

What a load leaves (libraries, tokenizer, model: hundreds of thousands of objects) stays as long as the engine, and what
comes and goes with steps holds hardly any cycles: looking through either again and again finds nothing, and stops every
thread for that long.
"""

from __future__ import annotations

import gc
import sys

THRESHOLDS = (5_000, 20, 50)  # Python's 700, 10, 10 made a whole collection of 0.1 s every few seconds of 256 replies
SWITCH_S = 0.0005  # with Python's 5 ms, 64 prompts sent at once kept the engine from its first step for 25 ms longer


def calm_down() -> None:
    """After a load: passes over all there is now from here on, looks through the rest seldom, and lets a thread that
    works give way soon to the engine's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)


def look_at_all() -> None:
    """Before memory is given back: nothing is passed over any more."""
    gc.unfreeze()
