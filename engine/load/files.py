"""Reading a checkpoint's files: JSON in whatever UTF-8 form it comes, and tensor bytes without a mapping.

Plain reads into the tensor's own memory keep nothing mapped: memory stays at one tensor, and no file stays locked.
"""

from __future__ import annotations

import codecs
import json
from io import BufferedReader
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.engine.errors import CheckpointError

FETCH_AGAIN = "The file is damaged or incomplete; fetch it again."
_LFS_POINTER = b"version https://git-lfs"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a UTF-8 file, with or without a byte order mark; CheckpointError says what is wrong."""
    raw = path.read_bytes()
    if raw.startswith(_UTF16):
        raise CheckpointError(f"{path.name} is encoded as UTF-16.", file=str(path), remedy="Save it as UTF-8.")
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path.name} is not UTF-8 (byte {error.start}).", file=str(path), remedy="Save it as UTF-8."
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not valid JSON ({error}).", file=str(path), remedy=FETCH_AGAIN) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} holds no JSON object.", file=str(path), remedy=FETCH_AGAIN)
    return value


def refuse_lfs_pointer(path: Path, beginning: bytes) -> None:
    """Raises CheckpointError if the file is what git leaves in place of a large file it did not fetch."""
    if beginning.startswith(_LFS_POINTER[: len(beginning)]) and len(beginning) >= 8:
        raise CheckpointError(
            f"{path.name} is a Git LFS pointer, not the file itself.",
            file=str(path),
            remedy="Run `git lfs pull` in its folder, or fetch the model again.",
        )


def read_into(stream: BufferedReader, target: Tensor, file: Path, tensor: str) -> None:
    """Fills a contiguous uint8 tensor from the stream's place; CheckpointError if the file ends first."""
    view = memoryview(target.view(-1).numpy().data)
    if stream.readinto(view) != len(view):
        raise CheckpointError(
            f"{file.name} ended while {tensor} was read.",
            file=str(file),
            tensor=tensor,
            remedy="The file was changed or its drive went away; load the model again.",
        )
