"""Whether a run may write where it was told to."""

from __future__ import annotations

from pathlib import Path

from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.lock import FolderLock
from octavo.engine.quant.calibrate.state import StateFolder


def check_place(out: Path, resume: bool, restart: bool = False) -> None:
    """Raises QuantizeError if a run may not write to `out` and the folder beside it."""
    state = StateFolder(out)
    if resume and restart:
        raise QuantizeError("--resume and --restart cannot both be.", remedy="Leave one of them out.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise QuantizeError(
            f"{out} exists already.", remedy="Name a folder that does not exist or is empty, or remove it."
        )
    if not out.parent.is_dir():
        raise QuantizeError(f"There is no folder {out.parent}.", remedy="Make it first, or name another place.")
    if not state.is_free() and not state.exists():
        raise QuantizeError(
            f"{state.folder}, where unfinished work would be kept, holds something else.",
            remedy="Move that elsewhere, or name another OUT.",
        )
    FolderLock(state.folder).check()
    if state.exists() and not (resume or restart):
        raise QuantizeError(
            f"{state.folder} holds an unfinished run.",
            remedy="Add --resume to go on with it, or --restart to begin anew without what it has done.",
        )
