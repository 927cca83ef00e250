"""Python's collector of reference cycles beside a running engine: a whole collection stops the engine's thread too.

What a load leaves (libraries, tokenizer, model: hundreds of thousands of objects) stays as long as the engine, and what
comes and goes with steps holds hardly any cycles: looking through either again and again finds nothing.
"""

from __future__ import annotations

import gc

THRESHOLDS = (5_000, 20, 50)  # Python's 700, 10, 10 made a whole collection of 0.1 s every few seconds of 256 replies


def calm_down() -> None:
    """After a load: passes over all there is now from here on, and looks through the rest seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def look_at_all() -> None:
    """Before memory is given back: nothing is passed over any more."""
    gc.unfreeze()
