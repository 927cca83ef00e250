"""A run's folder beside what it writes: finished layers, the hidden states behind the last of them, and how far it got.

Every file is put into place when it is whole, and state.json last, so that a run may end anywhere. Nothing is removed
but what a run wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.files import read_into, read_json_object
from octavo.engine.load.safetensors_header import STORED_TYPES, read_header
from octavo.engine.load.safetensors_write import write_safetensors
from octavo.engine.load.write_folder import BESIDE, shard_name, write_json
from octavo.engine.quant.calibrate.asked import Asked
from octavo.engine.quant.calibrate.errors import QuantizeError
from octavo.engine.quant.calibrate.lock import MARK
from octavo.engine.quant.calibrate.report import REPORT

_SUFFIX = ".unfinished"
_STATE = "state.json"
_HIDDEN = "hidden"
_PART = r"(\.[0-9a-f]{8}\.part)?"  # of a file that was being written
_OWN_HIDDEN = re.compile(rf"{_HIDDEN}-\d{{5}}\.safetensors{_PART}")
_OWN_SHARD = re.compile(rf"model-\d{{5}}-of-\d{{5}}\.safetensors{_PART}")
_OWN_BESIDE = {name + end for name in (*BESIDE, REPORT) for end in ("", ".part")}


@dataclass(slots=True)
class Progress:
    """How far a run is. `asked` tells runs apart whose results would differ."""

    asked: Asked
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
        """Whether an unfinished run is there."""
        return self.load() is not None

    def is_free(self) -> bool:
        """Whether nothing is there but what a run leaves that was killed before it began."""
        if not self.folder.exists():
            return True
        if not self.folder.is_dir():
            return False
        return all(path.name == f"{_STATE}.part" or MARK.fullmatch(path.name) for path in self.folder.iterdir())

    def load(self) -> Progress | None:
        """What an earlier run left; None if there is no state.json, or one of somebody else."""
        try:
            found = Progress(**read_json_object(self.folder / _STATE))
        except (OSError, CheckpointError, TypeError):
            return None
        kinds = (found.asked, dict), (found.layers, list), (found.perplexity, dict), (found.measured_on, str)
        return found if all(isinstance(value, kind) for value, kind in kinds) else None

    def begin(self, asked: Asked) -> Progress:
        """The folder of a new run, without what an earlier one wrote."""
        self.remove()
        self.folder.mkdir(exist_ok=True)
        progress = Progress(asked)
        self.save(progress)
        self.model.mkdir(exist_ok=True)
        return progress

    def has_layers(self, done: int, total: int) -> bool:
        """Whether the weight files of the first `done` layers are there."""
        return all((self.model / shard_name(number, total + 1)).is_file() for number in range(1, done + 1))

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
        """Makes the model what was asked for, and removes the rest. Raises QuantizeError if somebody else has put
        something there meanwhile, which stays, and so does the model."""
        try:
            if self.out.is_dir():
                self.out.rmdir()  # succeeds only while it is empty
            elif self.out.exists():
                raise FileExistsError
            self.model.rename(self.out)
        except OSError as error:
            if not self.out.exists():
                raise
            raise QuantizeError(
                f"The model is finished in {self.model}, but {self.out}, where it was to stand, is taken now "
                f"({error.strerror or 'it is a file'}).",
                remedy="Move away what is there and run the same command with --resume, or take the model as it is.",
            ) from error
        self.remove()

    def remove(self) -> None:
        """Removes what runs wrote, state.json last; what else is there stays."""
        for file in self._own():
            file.unlink(missing_ok=True)
        for folder in (self.model, self.folder):
            with suppress(OSError):  # not empty, or never made
                folder.rmdir()

    def _own(self) -> Iterator[Path]:
        if self.model.is_dir():
            for path in list(self.model.iterdir()):
                if path.name in _OWN_BESIDE or _OWN_SHARD.fullmatch(path.name):
                    yield path
        if self.folder.is_dir():
            yield from [path for path in self.folder.iterdir() if _OWN_HIDDEN.fullmatch(path.name)]
        yield self.folder / f"{_STATE}.part"
        yield self.folder / _STATE

    def _hidden(self, layer: int) -> Path:
        return self.folder / f"{_HIDDEN}-{layer:05}.safetensors"
