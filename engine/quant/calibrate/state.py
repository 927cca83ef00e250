"""A run's folder beside what it writes: finished layers, the hidden states behind the last of them, and how far it got.

Every file is put into place when it is whole, and state.json last, so that a run may end anywhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.files import read_into, read_json_object
from octavo.engine.load.safetensors_header import STORED_TYPES, read_header
from octavo.engine.load.safetensors_write import write_safetensors
from octavo.engine.load.write_folder import write_json

_SUFFIX = ".unfinished"
_STATE = "state.json"
_HIDDEN = "hidden"


@dataclass(slots=True)
class Progress:
    """How far a run is. `key` tells runs apart whose results would differ."""

    key: str
    layers: list[dict[str, Any]] = field(default_factory=list)  # what the report says of each finished layer
    perplexity: dict[str, float] = field(default_factory=dict)
    measured_on: str = ""  # tells the text apart on which it was measured


class StateFolder:
    """`folder` stands beside `out`; `model` in it becomes `out` at the end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.parent / f"{out.name}{_SUFFIX}"
        self.model = self.folder / "model"

    def exists(self) -> bool:
        return self.folder.exists()

    def load(self, key: str) -> Progress | None:
        """What an earlier run with this key left; None if there is nothing that can be gone on from."""
        try:
            found = Progress(**read_json_object(self.folder / _STATE))
        except (OSError, CheckpointError, TypeError):
            return None
        return found if found.key == key else None

    def begin(self, key: str) -> Progress:
        """An empty folder, whatever was in it."""
        self.remove()
        self.model.mkdir(parents=True)
        progress = Progress(key)
        self.save(progress)
        return progress

    def save(self, progress: Progress) -> None:
        write_json(self.folder / _STATE, asdict(progress))

    def write(self, file: str, tensors: Mapping[str, Tensor]) -> None:
        """A weight file of the model."""
        entries = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        write_safetensors(self.model / file, entries, tensors.items(), {"format": "pt"})

    def keep_hidden(self, layer: int, hidden: Tensor) -> None:
        """Keeps the inputs of a layer."""
        write_safetensors(self._hidden(layer), {_HIDDEN: (tuple(hidden.shape), hidden.dtype)}, [(_HIDDEN, hidden)])

    def hidden(self, layer: int) -> Tensor:
        """The inputs of a layer. Raises CheckpointError or OSError if they are not there."""
        path = self._hidden(layer)
        stored = read_header(path)[_HIDDEN]
        dtype = STORED_TYPES[stored.dtype].torch
        tensor = torch.empty(stored.shape, dtype=dtype)
        with path.open("rb") as stream:
            stream.seek(stored.offset)
            read_into(stream, tensor.flatten().view(torch.uint8), path, _HIDDEN)
        return tensor

    def forget_hidden(self, layer: int) -> None:
        self._hidden(layer).unlink(missing_ok=True)

    def finish(self) -> None:
        """Makes the model what was asked for, and removes the rest."""
        if self.out.is_dir():
            self.out.rmdir()  # it was empty
        self.model.replace(self.out)
        self.remove()

    def remove(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _hidden(self, layer: int) -> Path:
        return self.folder / f"{_HIDDEN}-{layer:05}.safetensors"
