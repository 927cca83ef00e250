"""What a quantized checkpoint's method knows: which tensors make up a weight, and how they become a format's planes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from octavo.engine.errors import CheckpointError
from octavo.engine.load.checkpoint import TensorInfo
from octavo.engine.quant.base import Format

_SCALE_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}

Read = Callable[[str], Tensor]
Planes = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One weight that a checkpoint holds in several tensors.

    `convert` turns them, by role, into the planes of `format`; without a format into {"weight": plain float32}.
    """

    name: str
    shape: tuple[int, ...]
    kind: str  # as people call it: "AWQ 4-bit"
    format: Format | None
    tensors: Mapping[str, TensorInfo]  # role: where it is
    convert: Callable[[Mapping[str, Tensor]], Planes]


class Scheme(ABC):
    """One method. `roles` are the endings of tensor names it claims, `key` the one without which a module is plain;
    tensors that end in one of `ignored` say nothing about weights."""

    key: str
    roles: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def __init__(self, settings: Mapping[str, Any], read: Read, path: Path) -> None:
        """`settings` is the quantization_config, `read` gives a small tensor of the checkpoint. Raises
        UnsupportedModelError for a variant that is not read."""
        self.settings = settings
        self.read = read
        self.path = path

    @abstractmethod
    def weight(self, module: str, tensors: Mapping[str, TensorInfo]) -> StoredWeight:
        """The weight of a module from its tensors by role, headers only. Raises CheckpointError for wrong shapes."""

    def module_of(self, name: str) -> tuple[str, str] | None:
        """Splits the name of a tensor into module and role; None if it plays none."""
        for role in self.roles:
            if name.endswith(f".{role}"):
                return name[: -len(role) - 1], role
        return None

    def expect(self, tensors: Mapping[str, TensorInfo], role: str, *shapes: tuple[int, ...]) -> TensorInfo:
        """The tensor of a role, which must be there and, if shapes are given, have one of them."""
        if role not in tensors:
            first = next(iter(tensors.values()))
            self.fail(f"{first.name} has no {role} beside it", first)
        info = tensors[role]
        if shapes and info.shape not in shapes:
            self.fail(f"{info.name} has the shape {list(info.shape)}, expected {list(shapes[0])}", info)
        return info

    def matrix(self, tensors: Mapping[str, TensorInfo], role: str, *stored: str) -> tuple[int, int]:
        """The two sizes of the tensor of a role, which is stored as one of these types."""
        info = self.expect(tensors, role)
        if len(info.shape) != 2 or info.dtype not in stored:
            self.fail(f"{info.name} is stored as {info.dtype} {list(info.shape)}", info)
        return info.shape[0], info.shape[1]

    def scale_type(self, info: TensorInfo) -> torch.dtype:
        """The type of a tensor of scales, which is kept."""
        if info.dtype not in _SCALE_TYPES:
            self.fail(f"{info.name} is stored as {info.dtype}", info)
        return _SCALE_TYPES[info.dtype]

    def fail(self, what: str, info: TensorInfo) -> NoReturn:
        """Raises CheckpointError naming file and tensor."""
        raise CheckpointError(
            f"In {info.file.name}, {what}.",
            file=str(info.file),
            tensor=info.name,
            remedy="The file is damaged or its config.json belongs to another version; fetch the model again.",
        )
