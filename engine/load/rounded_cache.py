"""Weights that were rounded at load, kept on disk: the next load reads a quarter of the bytes and rounds nothing.

A file belongs to one checkpoint, known by its content, and one way of holding it. Whatever is wrong with a file, or
with the disk, only means that the weights are rounded again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.ahead import read_ahead
from octavo.engine.load.files import read_into
from octavo.engine.load.safetensors_header import STORED_TYPES, StoredTensor, read_header
from octavo.engine.load.safetensors_write import NAMES, write_safetensors
from octavo.engine.sending import host_room

log = logging.getLogger(__name__)

SHARE_OF_DISK = 0.2  # of what is free or held by these files
_VERSION = "1"  # to be raised when a format's planes change
_SAMPLES, _SAMPLE_BYTES = 256, 16 << 10

Entries = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class RoundedCache:
    """The files of one folder, which is made when something is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, files: Iterable[Path], *settings: object) -> Path:
        """Where the weights of these files are or will be, held in a way that the settings describe."""
        key = hashlib.sha256(repr((_VERSION, fingerprint(files), *map(str, settings))).encode()).hexdigest()
        return self.folder / f"{key[:40]}.safetensors"

    def read(self, path: Path, entries: Entries, *, pinned: bool = False) -> Iterator[tuple[str, Tensor]] | None:
        """The planes, one at a time, `pinned` as `Checkpoint.stream` has it; None if the file is not there or not as
        expected.

        Raises CheckpointError if it breaks off while it is read.
        """
        try:
            stored = read_header(path)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, CheckpointError) as error:
            log.warning("Rounded weights are made again: %s", error)
            return None
        found = {name: (tensor.shape, STORED_TYPES[tensor.dtype].torch) for name, tensor in stored.items()}
        if found != dict(entries):
            log.warning("Rounded weights are made again: %s holds others than expected.", path.name)
            return None
        return _planes(path, stored, pinned)

    def write(self, path: Path, entries: Entries, planes: Iterable[tuple[str, Tensor]]) -> bool:
        """Keeps the planes, for which older files may have to go. False if they do not fit or cannot be written."""
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in entries.values())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._make_room(size):
                log.info("Rounded weights of %d MiB are not kept: the disk of %s is too full.", size >> 20, self.folder)
                return False
            write_safetensors(path, entries, planes)
        except OSError as error:
            log.warning("Rounded weights could not be kept: %s", error)
            return False
        return True

    def _make_room(self, size: int) -> bool:
        held = sorted(self.folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        sizes = {file: file.stat().st_size for file in held}
        limit = int((shutil.disk_usage(self.folder).free + sum(sizes.values())) * SHARE_OF_DISK)
        if size > limit:
            return False
        for oldest in held:
            if sum(sizes.values()) + size <= limit:
                break
            oldest.unlink(missing_ok=True)
            del sizes[oldest]
        return True


def fingerprint(files: Iterable[Path]) -> str:
    """What tells a checkpoint's content from another's without reading all of it: sizes, times of change, and samples
    of the bytes, among them the headers."""
    digest = hashlib.sha256()
    for file in sorted(files):
        stat = file.stat()
        digest.update(repr((file.name, stat.st_size, stat.st_mtime_ns)).encode())
        step = max(_SAMPLE_BYTES, stat.st_size // _SAMPLES)
        with file.open("rb") as stream:
            for begin in range(0, stat.st_size, step):
                stream.seek(begin)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _planes(path: Path, stored: Mapping[str, StoredTensor], pinned: bool) -> Iterator[tuple[str, Tensor]]:
    by_name = {name: dtype for dtype, name in NAMES.items()}

    def read(tensor: StoredTensor) -> Tensor:
        plane = host_room(tensor.shape, by_name[tensor.dtype], pinned)
        with path.open("rb") as stream:
            stream.seek(tensor.offset)
            read_into(stream, plane.flatten().view(torch.uint8), path, tensor.name)
        return plane

    for tensor, plane in read_ahead([(tensor, tensor.size_bytes) for tensor in stored.values()], read):
        yield tensor.name, plane
