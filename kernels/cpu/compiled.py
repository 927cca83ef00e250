"""Compiles the kernels, or takes them from the cache of an earlier start."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

_DIGEST = re.compile("[0-9a-f]{16}")
KINDS = ("bfloat16", "float32")  # how weights, keys and values may be stored


def source_digest() -> str:
    """Of everything the compiled code depends on in this package: numba itself looks only at a function's own file."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def is_kept(folder: Path) -> bool:
    """Whether an earlier `compile_entry` of the same sources left something in a folder."""
    return next((folder / source_digest()).rglob("*.nbc"), None) is not None


def drop_kept(folder: Path) -> None:
    """Removes what earlier `compile_entry`s of the same sources left in a folder, so that the next one starts anew."""
    shutil.rmtree(folder / source_digest(), ignore_errors=True)


def drop_others(folder: Path, kept: int = 1) -> None:
    """Removes what former sources left in a folder, all but the `kept` that were used last: a checkout beside an
    installation keeps its own. Marks this one as used."""
    own = folder / source_digest()
    with suppress(OSError):
        os.utime(own)
        others = [place for place in folder.iterdir() if _DIGEST.fullmatch(place.name) and place != own]
        for place in sorted(others, key=lambda place: -place.stat().st_mtime)[kept:]:
            shutil.rmtree(place, ignore_errors=True)


def compile_entry(kind: str, folder: Path | None = None) -> Callable[..., None]:
    """`entry.enter` for a dtype of KINDS, ready to be called; its last argument is what `tag` gives for it.

    `folder` keeps the machine code between starts. Without it this takes 12 to 47 s of one core, with it 0.3 s. Raises
    ImportError without numba, and whatever numba raises where it does not know the processor.
    """
    from numba import float32, int64, njit, uint16
    from numba.core import config

    from octavo.kernels.cpu.entry import enter
    from octavo.kernels.cpu.numbers import EXACT

    before = config.CACHE_DIR
    try:
        if folder is not None:
            config.CACHE_DIR = str(folder / source_digest())
        function = njit(cache=folder is not None, **EXACT)(enter)
        function.compile((int64, int64, int64, int64, int64, uint16 if kind == "bfloat16" else float32))
    finally:
        config.CACHE_DIR = before
    return function


def tag(kind: str) -> np.generic:
    """A number whose type says how numbers of a dtype of KINDS are stored."""
    return np.uint16(0) if kind == "bfloat16" else np.float32(0)
