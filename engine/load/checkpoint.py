"""A checkpoint on disk, whatever its format, as named tensors that are streamed one at a time.

Names, shapes and the configuration are always Hugging Face's, also where the file (GGUF) has names of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, dtype

from octavo.engine.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from octavo.engine.quant.base import Format

Kind = Literal["safetensors", "gguf"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What the headers say of one tensor. `dtype` is the stored format by name: "BF16", "F32", "Q4_K"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    size_bytes: int  # as stored
    held: Format | None = None  # how the weight can be kept as it is stored; None: only as plain numbers


class Checkpoint(ABC):
    """Headers checked, nothing loaded. Closing it is enough to let go of every file; it is its own context manager."""

    path: Path
    kind: Kind
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: Mapping[str, TensorInfo]

    @abstractmethod
    def stream(
        self, names: Collection[str] | None = None, dtype: dtype | None = None, *, pinned: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, CPU tensor) in file order, for all tensors or those named; none is kept here.

        `dtype` converts floating-point tensors; quantized ones decode to float32 without it. `pinned`: what is
        read without decoding comes in page-locked memory, if it is not too large, for copies that are only queued.
        Raises what `check` raises, before anything is read.
        """

    def stream_planes(self, names: Collection[str], *, pinned: bool = False) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yields (name, planes of its `held` format on the CPU) for weights that have one, one at a time."""
        raise NotImplementedError(f"{self.kind} holds nothing packed")

    @abstractmethod
    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """A transformers tokenizer made from local files alone; no code of the checkpoint is run."""

    def read(self, name: str, dtype: dtype | None = None, *, pinned: bool = False) -> Tensor:
        """One tensor, as `stream` gives it."""
        for _, tensor in self.stream((name,), dtype, pinned=pinned):
            return tensor
        raise self.missing(name)

    def check(self, names: Collection[str] | None = None) -> None:
        """Raises CheckpointError for a name that is not here or whose stored type is not read. Reads nothing."""
        for name in self.tensors if names is None else names:
            if name not in self.tensors:
                raise self.missing(name)

    def missing(self, name: str) -> CheckpointError:
        """The error for a tensor this checkpoint does not have."""
        return CheckpointError(
            f"{self.path.name} has no tensor named {name}.",
            file=str(self.path),
            tensor=name,
            remedy="The file is incomplete or belongs to another model; fetch it again.",
        )

    def close(self) -> None:  # noqa: B027 - a checkpoint may hold no file open between calls
        """Lets go of all files. Tensors already given out stay valid."""

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a folder with safetensors, a .gguf file, or a folder whose only model is one .gguf file.

    Every header is checked first: CheckpointError names the file and the tensor that is wrong, UnsupportedModelError
    an architecture of a GGUF file that has no map here.
    """
    path = Path(path)
    try:
        return _open(path)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path} cannot be read ({error.strerror or error}).",
            file=str(error.filename or path),
            remedy="Check that the file is there and that you may read it.",
        ) from error


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        gguf_file = find_gguf(path)
        if gguf_file is None:
            from octavo.engine.load.packed.checkpoint import open_packed
            from octavo.engine.load.safetensors_checkpoint import SafetensorsCheckpoint

            return open_packed(SafetensorsCheckpoint(path))
        path = gguf_file
    elif not path.is_file():
        raise CheckpointError(
            f"There is no model at {path}.", file=str(path), remedy="Name a folder with safetensors or a .gguf file."
        )
    elif path.suffix.lower() == ".safetensors":
        raise CheckpointError(
            f"{path.name} alone is not a model: its config.json lies beside it.",
            file=str(path),
            remedy=f"Name the folder instead: {path.parent}",
        )
    from octavo.engine.load.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path)


def find_gguf(folder: Path) -> Path | None:
    """The one GGUF model of a folder without safetensors; a split counts as one. Two or more raise CheckpointError."""
    entries = sorted(p for p in folder.iterdir() if p.is_file())
    if any(p.name.endswith((".safetensors", ".safetensors.index.json")) for p in entries):
        return None
    from octavo.engine.load.gguf_split import first_parts

    models = first_parts([p for p in entries if p.suffix.lower() == ".gguf" and "mmproj" not in p.name.lower()])
    if len(models) > 1:
        names = ", ".join(p.name for p in models[:4]) + (", ..." if len(models) > 4 else "")
        raise CheckpointError(
            f"{folder} holds {len(models)} GGUF models ({names}).",
            file=str(folder),
            remedy="Name the .gguf file that you want.",
        )
    return models[0] if models else None
