"""Streams a checkpoint into a transformers class that was made without storage, with transformers' own renamings."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import SkipParameters, WeightConverter, WeightRenaming, rename_source_key
from transformers.utils.loading_report import LoadStateDictInfo

from octavo.engine.errors import CheckpointError
from octavo.engine.load.checkpoint import Checkpoint
from octavo.engine.model.families import OTHER_CONFIG, WHOLE_NUMBERS

SETTINGS = re.compile(r"(rotary_emb\.inv_freq|attn\.(masked_)?bias|position_ids)$")  # buffers old files saved; computed


@dataclass(frozen=True, slots=True)
class WeightMap:
    """Where each tensor of a checkpoint goes. `converted` ones are made of several, such as a layer's experts."""

    direct: dict[str, str]  # tensor name: parameter
    converted: dict[str, tuple[tuple[str, str], ...]]  # first parameter: (tensor name, the converter's pattern)
    converters: dict[str, WeightConverter]  # by pattern
    expected: frozenset[str]  # every parameter and buffer that files hold


def map_weights(model: PreTrainedModel, checkpoint: Checkpoint) -> WeightMap:
    """Checks names, shapes and number types before anything is read. Raises CheckpointError naming tensor and file."""
    tensors, state = checkpoint.tensors, model.state_dict(keep_vars=True)
    transforms = get_model_conversion_mapping(model)
    renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    direct: dict[str, str] = {}
    converted: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(tensors, key=_natural):
        info = tensors[name]
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if target not in state and name in state:
            target, pattern = name, None
        if target not in state:
            if SETTINGS.search(name) or any(re.search(p, name) for p in model._keys_to_ignore_on_load_unexpected or ()):
                continue
            raise CheckpointError(
                f"{type(model).__name__} has no place for the tensor {name} of {info.file.name}.",
                file=str(info.file),
                tensor=name,
                remedy=OTHER_CONFIG,
            )
        if info.dtype in WHOLE_NUMBERS and state[target].is_floating_point():
            raise CheckpointError(
                f"The tensor {name} of {info.file.name} is stored as {info.dtype}, in whole numbers without a scale.",
                file=str(info.file),
                tensor=name,
                remedy="Use a version of the model in bfloat16, float16 or float32.",
            )
        if pattern is not None:
            converted.setdefault(target, []).append((name, pattern))
            continue
        if tuple(state[target].shape) != info.shape:
            raise CheckpointError(
                f"The tensor {name} of {info.file.name} has the shape {list(info.shape)}, "
                f"but its configuration says {list(state[target].shape)}.",
                file=str(info.file),
                tensor=name,
                remedy=OTHER_CONFIG,
            )
        direct[name] = target
    groups = {target: tuple(parts) for target, parts in converted.items()}
    found = set(direct.values())
    for target, parts in groups.items():
        patterns = by_pattern[parts[0][1]].target_patterns
        found.update(target.replace(patterns[0], pattern) for pattern in patterns)
    storages = {id(state[key]) for key in found & state.keys()}  # tied parameters are one object
    optional = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    for key, value in state.items():
        if id(value) not in storages and not any(pattern.search(key) for pattern in optional):
            raise checkpoint.missing(key)
    return WeightMap(direct, groups, by_pattern, frozenset(state))


def load_weights(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    weights: WeightMap,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    """Fills every parameter and buffer of a model on the meta device. Raises CheckpointError for one left unfilled."""
    total = sum(checkpoint.tensors[name].size_bytes for name in weights.direct)
    total += sum(checkpoint.tensors[name].size_bytes for parts in weights.converted.values() for name, _ in parts)
    done, filled = 0, set()

    def advance(name: str) -> None:
        nonlocal done
        done += checkpoint.tensors[name].size_bytes
        if progress is not None:
            progress("weights", done, total)

    for name, tensor in checkpoint.stream(weights.direct.keys(), dtype) if weights.direct else ():
        filled.add(_place(model, weights.direct[name], tensor, device, dtype))
        advance(name)
    for target, parts in weights.converted.items():
        converter = copy.deepcopy(weights.converters[parts[0][1]])
        read = dict(checkpoint.stream([name for name, _ in parts], dtype))
        for name, pattern in parts:
            converter.add_tensor(target, name, pattern, read[name].to(device))  # type: ignore[arg-type]
            advance(name)
        del read
        for key, tensor in _convert(converter, target, model).items():
            filled.add(_place(model, key, tensor[0] if isinstance(tensor, list) else tensor, device, dtype))
    _finish(model, filled, weights.expected, checkpoint, device)


def _convert(converter: WeightConverter, target: str, model: PreTrainedModel) -> dict[str, Any]:
    info = LoadStateDictInfo(set(), set(), set(), [], {}, set())
    try:
        values: dict[str, Any] = converter.convert(target, model=model, config=model.config, loading_info=info)
    except (SkipParameters, RuntimeError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"The tensors for {target} do not fit together: one is missing or has another shape.",
            tensor=target,
            remedy=OTHER_CONFIG,
        ) from error
    return values


def _place(model: nn.Module, key: str, tensor: Tensor, device: torch.device, dtype: torch.dtype) -> str:
    owner, _, leaf = key.rpartition(".")
    module = model.get_submodule(owner)
    old = getattr(module, leaf)
    if tensor.shape != old.shape:
        raise CheckpointError(
            f"The tensors for {key} make the shape {list(tensor.shape)}, but its configuration says {list(old.shape)}.",
            tensor=key,
            remedy=OTHER_CONFIG,
        )
    value = tensor.to(device=device, dtype=old.dtype if old.is_floating_point() else None, copy=True).contiguous()
    if leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[leaf] = value
    return key


def _finish(
    model: PreTrainedModel, filled: set[str], expected: frozenset[str], checkpoint: Checkpoint, device: torch.device
) -> None:
    model.tie_weights()
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for key in sorted(expected - filled):
        if named[key].is_meta:
            raise checkpoint.missing(key)
    # What no file holds (rotary frequencies and such) is made by the class itself; the flag keeps it off the weights.
    for value in named.values():
        value._is_hf_initialized = True  # type: ignore[union-attr]
    for key, buffer in list(model.named_buffers()):
        if buffer.is_meta:
            owner, _, leaf = key.rpartition(".")
            model.get_submodule(owner)._buffers[leaf] = torch.empty_like(buffer, device=device)
    model.initialize_weights()


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer 10 after layer 9, as the experts of a layer must be stacked."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
