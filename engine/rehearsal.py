"""A model's first steps gone through without a GPU: which kernels they launch, for processes that compile them ahead.

The engine's own code runs, on tensors that have a shape and a device and nothing else, with the figures of the GPU that
the engine will run on. It belongs in a process of its own: everything here is made for the occasion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from octavo.engine.assemble import SHAPE_PREFIX, shape_config
from octavo.engine.attention import choose_backend
from octavo.engine.compiling import Recipe
from octavo.engine.load.checkpoint import Checkpoint, open_checkpoint
from octavo.engine.memory import KVCache
from octavo.engine.model.build import build_hollow
from octavo.engine.model.decoder import Decoder
from octavo.engine.quant import gpu_blocks
from octavo.engine.request import Request, SamplingParams
from octavo.engine.run.resolve import resolve_kv_dtype
from octavo.engine.run.runner import FIRST_GRAPHS, ModelRunner
from octavo.engine.run.step import PageTables, StepInputs, make_inputs
from octavo.engine.schedule.plan import RowWork, StepPlan
from octavo.engine.text.tokenizer import Tokenizer
from octavo.kernels.compile_jobs import CompileJob, noting_jobs
from octavo.kernels.device import DeviceTraits, as_device
from octavo.kernels.gguf_weight import BlockWeight

T = TypeVar("T")
Note = Callable[[CompileJob, int], None]

PROMPTS = (300, 1000)  # tokens of prompts that are read without a graph; multiples of 16 are rare
_DEVICE = torch.device("cuda", 0)  # which of several it is makes no difference
_PAGES = 80  # no kernel is told how many there are


def rehearse(recipe: Recipe, note: Note) -> list[str]:
    """Calls `note(job, n)` for each distinct launch as it comes up, n being how many of the first graphs were begun.

    Returns why steps were not gone through to their end. Raises whatever goes wrong before the first, and OSError.
    """
    if torch.cuda.is_available():  # what kernels keep for a device would be of no use to an engine in this process
        raise RuntimeError("A rehearsal needs a process that sees no GPU.")
    with ExitStack() as stack:
        source: Checkpoint | dict[str, Any]
        vocabulary = None
        if recipe.source.startswith(SHAPE_PREFIX):
            source = shape_config(recipe.source.removeprefix(SHAPE_PREFIX))
        else:
            source = stack.enter_context(open_checkpoint(Path(recipe.source)))
            vocabulary = Tokenizer(source.load_tokenizer(), name=source.path.name).vocab_size
        stack.enter_context(_on(recipe.traits))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(torch.inference_mode())
        model = build_hollow(
            source,
            device=_DEVICE,
            dtype=recipe.dtype,
            context_length=recipe.context_length,
            fusion=recipe.config.fusion,
            quantization=recipe.config.quantization,
            quantize_head=recipe.config.quantize_head,
            free_bytes=recipe.free_bytes,
        )
        runner = _runner(recipe, model, vocabulary)
        noting = noting_jobs(recipe.traits.capability, lambda job: note(job, runner.first_graphs_begun))
        stack.enter_context(noting)
        steps: list[Callable[[], object]] = [runner.prepare_next] * (2 * len(FIRST_GRAPHS))  # no graph takes more calls
        prompts = [count for count in PROMPTS if count < recipe.context_length]
        steps += [partial(_read_prompt, runner, count, recipe.context_length) for count in prompts]
        return [reason for step in steps if (reason := _why_not(step)) is not None]


def _why_not(step: Callable[[], object]) -> str | None:
    """Goes through a step; says what it failed of, such as numbers that it asked for."""
    try:
        step()
    except OSError:
        raise  # nobody listens any more
    except Exception as error:  # other steps may do without what this one lacks
        return f"{type(error).__name__}: {str(error).strip()[:200]}"
    return None


def _runner(recipe: Recipe, model: Decoder, vocabulary: int | None) -> ModelRunner:
    config, device = recipe.config, model.device
    kv_dtype = resolve_kv_dtype(config.kv_cache_dtype, model.dtype)
    page_size = config.page_size if config.paged_attention else recipe.context_length
    return ModelRunner(
        model,
        KVCache(model.cache_groups, [_PAGES] * len(model.cache_groups), page_size, kv_dtype, device),
        choose_backend(device, model.dtype, model.attn_specs, config.fusion, kv_dtype),
        max_running=config.max_running,
        context_length=recipe.context_length,
        valid_vocab=vocabulary,
        graphs=config.fusion,
        make_pool=_NoPool,  # type: ignore[arg-type]
    )


def _read_prompt(runner: ModelRunner, count: int, context_length: int) -> None:
    """A step that reads one prompt without a graph, up to its scores."""
    page_size, device = runner.cache.page_size, runner.model.device
    pages = -(-context_length // page_size)
    request = Request("rehearsal", (0,) * count, SamplingParams(), 0.0, row=0, epoch=1, limit=count + 1)
    request.pages = [[0] * -(-count // page_size) for _ in runner.cache.groups]
    plan = StepPlan((RowWork(request, 0, count, True, 1),), 0)
    inputs = make_inputs(plan, PageTables(len(runner.cache.groups), 1, pages), page_size, torch.device("cpu"))
    runner.model.logits(runner.forward(_on_device(inputs, device))[-1:])


def _on_device(inputs: StepInputs, device: torch.device) -> StepInputs:
    """Tensors of the same sizes there."""

    def there(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    layout, positions = inputs.layout, there(inputs.positions)
    layout = replace(
        layout,
        q_start=there(layout.q_start),
        q_pos=positions,
        kv_len=there(layout.kv_len),
        tables=tuple(map(there, layout.tables)),
        write_slots=tuple(map(there, layout.write_slots)),
    )
    return StepInputs(there(inputs.token_ids), positions, layout)


class _NoPool:
    """In place of a pool of captured graphs: what would be captured runs once."""

    def capture(self, run: Callable[[], T]) -> tuple[None, T]:
        return None, run()


@contextmanager
def _on(traits: DeviceTraits) -> Iterator[None]:
    """Within, there seems to be a GPU with these figures."""
    asked, split = torch.cuda.get_device_capability, gpu_blocks.planes_of
    made: dict[tuple[object, ...], BlockWeight] = {}

    def planes_of(blocks: Tensor, kind: str, size: int) -> BlockWeight:
        """Weights of one size have the same planes where none has numbers; cutting them takes some dozens of steps."""
        key = (blocks.shape, kind, size)
        if key not in made:
            made[key] = split(blocks, kind, size)
        return made[key]

    torch.cuda.get_device_capability = lambda device=None: divmod(traits.capability, 10)  # type: ignore[assignment]
    gpu_blocks.planes_of = planes_of
    try:
        with as_device(traits):
            yield
    finally:
        torch.cuda.get_device_capability, gpu_blocks.planes_of = asked, split
