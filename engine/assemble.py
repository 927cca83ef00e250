"""From a checkpoint to a running engine: the one place where all parts meet."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from octavo.engine.attention import choose_backend
from octavo.engine.compiling import CompileAhead, Recipe, compile_ahead
from octavo.engine.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.engine import EngineParts, LoadProgress, ModelInfo
from octavo.engine.errors import LoadError, OctavoError
from octavo.engine.load.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from octavo.engine.load.rounded_cache import RoundedCache
from octavo.engine.memory import KVCache, NoCache, PagePool, PrefixCache, RadixTree, SlotCache
from octavo.engine.model.base import CausalModel
from octavo.engine.model.build import build_model, build_random, longest_context
from octavo.engine.model.decoder import Decoder
from octavo.engine.model.spec import has_own_decoder
from octavo.engine.quant import PACKED
from octavo.engine.request import Event
from octavo.engine.run.resolve import (
    CacheSize,
    bound_context,
    free_memory,
    kv_dtype_name,
    kv_dtype_notice,
    resolve_cache,
    resolve_chunk,
    resolve_context,
    resolve_device,
    resolve_dtype,
    resolve_kv_dtype,
    resolve_threads,
)
from octavo.engine.run.runner import ModelRunner
from octavo.engine.schedule import Scheduler, StepBudget, make_policy
from octavo.engine.speculate.setup import DraftModel, load_draft, make_speculator, running_mode
from octavo.engine.text.stops import stop_token_ids
from octavo.engine.text.template import ChatTemplate
from octavo.engine.text.tokenizer import Tokenizer
from octavo.kernels.device import device_traits

log = logging.getLogger(__name__)

SHAPE_PREFIX = "shape:"
Progress = Callable[[LoadProgress], None]


def assemble(source: str | Path, config: EngineConfig, progress: Progress) -> EngineParts:
    """Loads the model, sizes the cache and puts the engine's parts together. Raises the errors of engine/errors.py."""
    device, device_notice = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    if device.type == "cpu":
        torch.set_num_threads(resolve_threads(config.cpu_threads))
    else:
        torch.cuda.set_device(device)
    notices = [device_notice] if device_notice else []
    with ExitStack() as undo:
        parts = _assemble(source, config, progress, device, dtype, notices, undo)
        undo.pop_all()
    return parts


def _assemble(
    source: str | Path,
    config: EngineConfig,
    progress: Progress,
    device: torch.device,
    dtype: torch.dtype,
    notices: list[str],
    undo: ExitStack,
) -> EngineParts:
    """As above; `undo` is for what is started beside the load, should it fail."""
    traits = device_traits(device)
    name = str(source)
    if name.startswith(SHAPE_PREFIX):
        shape = shape_config(name.removeprefix(SHAPE_PREFIX))
        context = resolve_context(config, _max_positions(shape))
        progress(LoadProgress("weights", 0, 0))
        compiling = _compile_meanwhile(Recipe(name, config, device, traits, dtype, context), shape, {}, undo)
        model: CausalModel = build_random(
            shape,
            device=device,
            dtype=dtype,
            context_length=context,
            fusion=config.fusion,
            quantization=config.quantization,
            quantize_head=config.quantize_head,
        )
        return _put_together(model, config, name, notices, None, None, frozenset(), {}, "random weights", compiling)
    progress(LoadProgress("opening", 0, 0))
    with open_checkpoint(Path(source)) as checkpoint:
        free_bytes = free_memory(device)
        context = bound_context(resolve_context(config, _max_positions(checkpoint.config)), free_bytes)
        recipe = Recipe(str(checkpoint.path.absolute()), config, device, traits, dtype, context, free_bytes)
        compiling = _compile_meanwhile(recipe, checkpoint.config, checkpoint.tensors, undo)
        model = build_model(
            checkpoint,
            device=device,
            dtype=dtype,
            context_length=context,
            fusion=config.fusion,
            quantization=config.quantization,
            quantize_head=config.quantize_head,
            progress=lambda stage, done, total: progress(LoadProgress(stage, done, total)),
            free_bytes=free_bytes,
            rounded=RoundedCache(Path(config.rounded_folder)) if config.rounded_folder else None,
        )
        progress(LoadProgress("tokenizer", 0, 0))
        tokenizer = Tokenizer(checkpoint.load_tokenizer(), name=checkpoint.path.name)
        template = ChatTemplate(tokenizer)
        ends = stop_token_ids(
            tokenizer, checkpoint.config, checkpoint.generation_config, template_source=template.source
        )
        form = _described(_stored_format(checkpoint), model, config.quantization)
        defaults = dict(checkpoint.generation_config)
        name = checkpoint.path.name
        notices.extend(getattr(model, "notices", ()))
    progress(LoadProgress("cache", 0, 0))
    return _put_together(model, config, name, notices, tokenizer, template, ends, defaults, form, compiling)


def _compile_meanwhile(
    recipe: Recipe, model: Mapping[str, Any], tensors: Mapping[str, TensorInfo], undo: ExitStack
) -> CompileAhead | None:
    """On a GPU, starts to compile the kernels that the first steps will launch."""
    if recipe.device.type != "cuda" or not recipe.config.fusion or not has_own_decoder(model):
        return None
    compiling = compile_ahead(recipe, model, tensors)
    if compiling is not None:
        undo.callback(compiling.close)
    return compiling


def _put_together(
    model: CausalModel,
    config: EngineConfig,
    name: str,
    notices: list[str],
    tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
    end_ids: frozenset[int],
    generation_defaults: Mapping[str, Any],
    form: str,
    compiling: CompileAhead | None,
) -> EngineParts:
    device = model.device
    draft = _draft(config, model, tokenizer, notices)
    kv_dtype = resolve_kv_dtype(config.kv_cache_dtype, model.dtype)
    size = resolve_cache(config, model.cache_groups, model.max_positions, kv_dtype, device)
    notices += [notice for notice in (size.notice, kv_dtype_notice(kv_dtype, device)) if notice]
    if not config.fusion:
        notices.append("Operator fusion is off: every operation runs by itself in plain torch, which is slower.")
    if not config.paged_attention and config.prefix_sharing:
        notices.append("Paged attention is off: chats share nothing, and each holds a slot of its whole context.")
    backend = choose_backend(device, model.dtype, model.attn_specs, config.fusion, kv_dtype)
    cache = KVCache(model.cache_groups, size.num_pages, size.page_size, kv_dtype, device)
    runner = ModelRunner(
        model,
        cache,
        backend,
        max_running=config.max_running,
        context_length=size.context_length,
        valid_vocab=tokenizer.vocab_size if tokenizer else None,
        graphs=config.fusion,
        kernels=compiling,
    )
    describe = tokenizer.token_text if tokenizer else str

    def core(emit: Callable[[str, Event], None]) -> EngineCore:
        scheduler = _scheduler(config, cache, size, device)
        vocabulary = tokenizer.vocab_size if tokenizer else None
        speculator = make_speculator(
            config, model, runner, draft, size.context_length, vocabulary, scheduler.reserve_unused
        )
        return EngineCore(scheduler, runner, emit, speculator=speculator, describe_token=describe)

    info = ModelInfo(
        name=name,
        architecture=model.architecture,
        format=form,
        dtype=str(model.dtype).removeprefix("torch."),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        context_length=size.context_length,
        longest_context=model.max_positions,
        vocab_size=model.vocab_size,
        weight_bytes=model.weight_bytes,
        kv_bytes=cache.size_bytes,
        chat_bytes=sum(
            group.bytes_per_token(kv_dtype) * min(size.context_length, group.window or size.context_length)
            for group in cache.groups
        ),
        kv_dtype=kv_dtype_name(kv_dtype),
        notices=tuple(notices),
        generation_defaults=dict(generation_defaults),
    )
    settings = dataclasses.asdict(config) | {
        "device": str(device),
        "dtype": info.dtype,
        "context_length": size.context_length,
        "page_size": size.page_size,
        "kv_cache_dtype": kv_dtype_name(kv_dtype),
        "prefix_sharing": config.prefix_sharing and config.paged_attention,
        "attention_backend": backend.name,
        "slots": None if config.paged_attention else size.num_pages[0] - 1,
        "speculation": running_mode(config, model, draft),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
    }
    rows = config.max_running if config.paged_attention else min(config.max_running, size.num_pages[0] - 1)

    def prepare_thread() -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def release() -> None:
        if compiling is not None:
            compiling.close()

    return EngineParts(
        core, config, info, size.page_size, rows, tokenizer, template, end_ids, settings, prepare_thread, release
    )


def _draft(
    config: EngineConfig, model: CausalModel, tokenizer: Tokenizer | None, notices: list[str]
) -> DraftModel | None:
    """The model that guesses, loaded before the cache takes what memory is left; a notice if it cannot be used."""
    draft = load_draft(config, model, tokenizer, resolve_context(config, model.max_positions))
    if isinstance(draft, OctavoError):
        left = "Only copies are guessed ahead" if config.speculation == "auto" else "Tokens are computed one at a time"
        notices.append(f"{left}: {draft}")
        return None
    return draft


def _scheduler(config: EngineConfig, cache: KVCache, size: CacheSize, device: torch.device) -> Scheduler:
    pools = [PagePool(count) for count in cache.num_pages]
    prefix: PrefixCache
    if not config.paged_attention:
        prefix = SlotCache(pools, size.page_size)
    elif config.prefix_sharing:
        prefix = RadixTree(pools, size.page_size, [group.window for group in cache.groups])
    else:
        prefix = NoCache(pools, size.page_size)
    chunk = resolve_chunk(config.prefill_chunk, device)
    budget = StepBudget(chunk, config.target_gap_ms / 1000, adaptive=config.prefill_chunk is None)
    return Scheduler(
        cache.groups,
        pools,
        prefix,
        make_policy(config.scheduler),
        budget,
        config.max_running,
        prune_windows=config.paged_attention,
        hold_back=config.paged_attention and config.prefix_sharing,
    )


def shape_config(name: str) -> dict[str, Any]:
    """The Hugging Face config of a benchmark shape, such as llama-8b. Raises LoadError for an unknown name."""
    shapes = benchmark_data()["shapes"]
    if name not in shapes:
        raise LoadError(f"There is no shape {name!r}.", remedy=f"Known shapes: {', '.join(shapes)}.")
    return dict(shapes[name])


def benchmark_data() -> dict[str, Any]:
    """The benchmark's workloads and shapes, from workloads.json beside this file."""
    text = resources.files("octavo.engine").joinpath("workloads.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def _max_positions(config: Mapping[str, Any]) -> int:
    return longest_context(config)


def _described(stored: str, model: CausalModel, quantization: str) -> str:
    """How the weights are stored and, where that is not the same, what they run as: "Q4_1 as int4"."""
    if quantization not in ("none", PACKED):
        return f"{stored} as {quantization}"
    dtype = str(model.dtype).removeprefix("torch.")
    if isinstance(model, Decoder) and model.weights.stay_packed:
        return stored
    return dtype if stored == dtype else f"{stored} as {dtype}"


def _stored_format(checkpoint: Checkpoint) -> str:
    """The type most of the checkpoint's bytes are stored in, as people call it."""
    sizes: dict[str, int] = {}
    for info in checkpoint.tensors.values():
        kind = str(info.dtype).removeprefix("torch.")
        sizes[kind] = sizes.get(kind, 0) + info.size_bytes
    return max(sizes, key=lambda kind: sizes[kind]) if sizes else "unknown"
