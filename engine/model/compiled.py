"""Decode steps on the CPU through the compiled kernels of `octavo.kernels.cpu`: all layers in one call.

What is fixed for a model is written into the kernels' tables once; a step only fills in where its rows stand. The
kernels are compiled, or read from disk, by a thread of their own; until they are there, and for every step they do not
serve, the operations run one by one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, AttnSpec
from octavo.engine.model.compiled_prompt import WidenedProducts
from octavo.engine.model.compiled_weights import LinearTable, form_of
from octavo.engine.model.parameters import Weights
from octavo.engine.model.spec import ModelSpec
from octavo.engine.quant.base import WeightRef
from octavo.kernels.cpu.compiled import compile_entry, drop_kept, drop_others, is_kept, tag
from octavo.kernels.cpu.crew import Crew
from octavo.kernels.cpu.fields import (
    MAX_ROWS,
    PHASES,
    Factor,
    Form,
    Group,
    Layer,
    Linear,
    Step,
    counter_bytes,
    row_blocks,
    scratch_floats,
    tile_columns,
    whole_bytes,
)

log = logging.getLogger(__name__)

_KINDS = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
PATIENCE_S = 3.0
_DECODE, _HEAD, _EXPAND = 0, 1, 2  # tasks of the kernels' entry


def why_not_compiled(spec: ModelSpec, dtype: torch.dtype) -> str | None:
    """None, or why a model's decode steps cannot go through the compiled kernels."""
    if dtype not in _KINDS:
        return f"weights in {dtype} are not read"
    if spec.experts is not None:
        return "experts are chosen token by token"
    if spec.qk_norm == "full" or any(layer.rope is None for layer in spec.layers):
        return "queries and keys are not treated head by head"
    if spec.activation not in _ACTIVATIONS:
        return f"the activation {spec.activation} is not there"
    sizes = (spec.hidden_size, spec.intermediate_size, spec.head_size)
    if any(size % 32 for size in sizes):
        return f"sizes {sizes} are not all multiples of 32"
    if spec.vocab_size < 16:
        return "there are fewer tokens than a tile has outputs"
    return None


class Entry:
    """The compiled function for one dtype, made once a process by a thread of its own."""

    _made: dict[str, Entry] = {}  # noqa: RUF012 - shared on purpose
    _lock = threading.Lock()

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._function: Callable[..., None] | None = None
        self._kept = is_kept(kernel_folder())
        self._thread = threading.Thread(target=self._compile, name="compile", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, dtype: torch.dtype) -> Entry:
        """Begins to compile what is not there yet, for a dtype that `why_not_compiled` lets pass."""
        kind = _KINDS[dtype]
        with cls._lock:
            if kind not in cls._made:
                cls._made[kind] = cls(kind)
            return cls._made[kind]

    @property
    def function(self) -> Callable[..., None] | None:
        """None while it is compiled; what an earlier start left on disk is waited for, which takes half a second."""
        if self._kept and self._function is None:
            self._thread.join(PATIENCE_S)
            self._kept = False
        return self._function

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is there, after so long at most."""
        self._thread.join(timeout_s)
        return self._function is not None

    def _compile(self) -> None:
        try:
            self._function = self._with_folder()
        except ModuleNotFoundError as error:
            log.info("the CPU's kernels are not compiled: %s", error)
        except Exception:  # a processor or a numba that is not known must not cost more than speed
            log.warning("the CPU's kernels cannot be compiled; the operations run one by one", exc_info=True)

    def _with_folder(self) -> Callable[..., None]:
        folder = kernel_folder()
        try:
            function = compile_entry(self._kind, folder)
        except ImportError:
            raise
        except Exception as error:  # numba checks nothing of what it reads: a cut file raises whatever pickle does
            log.info("compiled kernels cannot be kept in %s, or what is there is damaged: %r", folder, error)
            drop_kept(folder)
            return compile_entry(self._kind)
        drop_others(folder)
        return function


def kernel_folder() -> Path:
    """Where compiled kernels are kept: OCTAVO_KERNEL_FOLDER, or the user's folder for what can be made again."""
    if chosen := os.environ.get("OCTAVO_KERNEL_FOLDER"):
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return base / "octavo" / "Cache" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"


class CompiledDecode:
    """One model's tables and buffers. Not for two threads at once."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, attn_specs: Sequence[AttnSpec], rope_tables: Sequence[Tensor]
    ) -> None:
        self._spec, self._weights, self._attn_specs = spec, weights, attn_specs
        self._ropes = rope_tables
        self._linears = LinearTable(_linears(weights))
        self._dtype, self._tag = weights.dtype, tag(_KINDS[weights.dtype])
        self._entry = Entry.of(weights.dtype)
        self._kv: Sequence[object] | None = None  # the cache that the table of layers points into
        self._crew: Crew | None = None
        coded = bool((self._linears.rows[:, Linear.FORM] != Form.PLAIN).any())
        longest = max(spec.hidden_size, spec.intermediate_size, spec.q_size)
        self._whole_bytes = whole_bytes(longest) if coded and weights.dtype == torch.bfloat16 else 0  # of a thread
        self._table = np.zeros(len(Step), dtype=np.int64)
        self._address = self._table.ctypes.data  # asked of numpy anew, each address would cost microseconds a step
        self._blocks = np.zeros((MAX_ROWS + 1, MAX_ROWS), dtype=np.int64)
        for rows in range(MAX_ROWS + 1):
            self._blocks[rows, :rows] = row_blocks(rows)
        self._block_address, self._block_line = self._blocks.ctypes.data, self._blocks.strides[0]
        self._scored: tuple[Tensor, Tensor] | None = None  # what the last step returned, and its scores
        self._kept: list[object] = []  # memory the tables point to
        self._prompts = WidenedProducts(self._linears, self._widen)
        if weights.dtype == torch.bfloat16:
            self._prompts.enter(_linears(weights))

    @staticmethod
    def serves(weights: Weights) -> bool:
        """Whether all linears are merged and held as the kernels read them, which can still be otherwise when a
        checkpoint keeps some parts as it stores them."""
        if any(len(layer.qkv) != 1 or len(layer.gate_up) != 1 for layer in weights.layers):
            return False
        return all(form_of(ref.format) is not None for ref in _linears(weights))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the kernels are there, after so long at most."""
        return self._entry.wait(timeout_s)

    def forward(self, hidden: Tensor, positions: Tensor, step: AttentionStep) -> Tensor | None:
        """The normed hidden states [R, H] after all layers for embeddings [R, H] of a pure decode step; None if it is
        none, has too many rows, or the kernels are not there. Their scores are computed in the same call and kept for
        `head`: whoever asks for a decode step samples from it, and helpers need not be woken twice."""
        layout, rows = step.layout, len(hidden)
        pure = layout.num_decode_rows == rows and layout.num_tokens == layout.num_rows
        if rows > MAX_ROWS or not pure:
            return None
        enter = self._entry.function
        if enter is None or (step.layers is not self._kv and not self._point_at(step)):
            return None
        out = torch.empty_like(hidden)
        scores = torch.empty((rows, self._spec.vocab_size), dtype=torch.float32)
        crew = self._prepared(rows)
        table, groups = self._table, self._groups
        self._hidden[:rows].copy_(hidden)
        table[Step.POSITIONS] = positions.data_ptr()
        table[Step.KV_LENGTHS] = layout.kv_len.data_ptr()
        table[Step.PAGE_SIZE] = layout.page_size
        table[Step.OUT], table[Step.ORDERED] = out.data_ptr(), int(layout.shared_writes)
        table[Step.LOGITS] = scores.data_ptr()
        for index, (pages, slots) in enumerate(zip(layout.tables, layout.write_slots)):
            groups[index] = pages.data_ptr(), pages.stride(0), slots.data_ptr()
        crew.run(enter, _DECODE, self._address, self._tag)
        self._scored = out, scores
        return out

    def head(self, x: Tensor) -> Tensor | None:
        """Scores [R, vocabulary] in float32 for x [R, H]; None if the rows are too many or the kernels not there."""
        scored, self._scored = self._scored, None
        if scored is not None and scored[0] is x:
            return scored[1]
        enter = self._entry.function
        if len(x) > MAX_ROWS or enter is None or self._kv is None:
            return None
        x = x.contiguous()
        scores = torch.empty((len(x), self._spec.vocab_size), dtype=torch.float32)
        crew = self._prepared(len(x))
        self._table[Step.OUT], self._table[Step.LOGITS] = x.data_ptr(), scores.data_ptr()
        crew.run(enter, _HEAD, self._address, self._tag)
        return scores

    def _widen(self, linear: int, first: int, width: int, target: Tensor) -> bool:
        """Fills bfloat16 [rows, width] with rows of a weight that is held as codes, from `first` on."""
        enter = self._entry.function
        if enter is None:
            return False
        crew = self._crew_of(torch.get_num_threads())
        table = np.zeros(len(Step), dtype=np.int64)
        self._counters.fill(0)
        table[Step.COUNTERS], table[Step.TEAM] = self._counters.ctypes.data, crew.size
        table[Step.HEAD], table[Step.FIRST] = linear, first
        table[Step.WIDTH], table[Step.VOCABULARY], table[Step.OUT] = width, len(target), target.data_ptr()
        crew.run(enter, _EXPAND, table.ctypes.data, self._tag)
        return True

    def _point_at(self, step: AttentionStep) -> bool:
        """Fills the tables for a cache; False if the kernels cannot read it."""
        if any(plane.dtype != self._dtype for kv in step.layers for plane in (kv.k, kv.v)):
            return False
        from octavo.kernels.cpu import tiles

        self._kv = step.layers
        self._tiled = self._dtype == torch.bfloat16 and tiles.available()
        configurations = {columns: tiles.configuration(columns) for columns in (8, 16)}
        self._configurations = {columns: table.ctypes.data for columns, table in configurations.items()}
        spec, table = self._spec, self._table
        layers = np.zeros((len(spec.layers), len(Layer)), dtype=np.int64)
        head, *linears = self._linears.addresses
        for index, row in enumerate(layers):
            self._describe(index, step, row)
            row[[Layer.QKV, Layer.O, Layer.GATE_UP, Layer.DOWN]] = linears[4 * index : 4 * index + 4]
        self._groups = np.zeros((1 + max(kv.group for kv in step.layers), len(Group)), dtype=np.int64)
        factors = np.zeros(len(Factor), dtype=np.float32)
        factors[Factor.NORM_EPS], factors[Factor.ATTN_SCALE] = spec.norm_eps, spec.attn_scale
        factors[Factor.SOFTCAP], factors[Factor.RESIDUAL] = spec.attn_softcap or 0.0, spec.residual_scale
        width, q_width = spec.hidden_size, spec.q_size
        merged = q_width + 2 * spec.kv_size
        sizes = {
            Step.QKV: merged,
            Step.ATTENDED: q_width,
            Step.INNER: spec.intermediate_size,
            Step.DELTA: width,
        }
        buffers = {place: np.zeros(MAX_ROWS * size, dtype=np.float32) for place, size in sizes.items()}
        for place, buffer in buffers.items():
            table[place] = buffer.ctypes.data
        self._hidden = torch.empty((2 * MAX_ROWS, width), dtype=torch.float32)
        table[Step.HIDDEN] = self._hidden.data_ptr()
        table[Step.LAYERS], table[Step.NUM_LAYERS] = layers.ctypes.data, len(layers)
        table[Step.GROUPS], table[Step.FACTORS] = self._groups.ctypes.data, factors.ctypes.data
        table[Step.FINAL_NORM] = self._weights.norm.data_ptr()
        table[Step.HEAD], table[Step.VOCABULARY] = head, spec.vocab_size
        table[Step.WIDTH], table[Step.INNER_WIDTH] = width, spec.intermediate_size
        table[Step.Q_HEADS], table[Step.KV_HEADS] = spec.q_heads, spec.kv_heads
        table[Step.HEAD_SIZE], table[Step.ACT] = spec.head_size, _ACTIVATIONS[spec.activation]
        self._kept = [layers, factors, buffers, configurations]
        return True

    def _describe(self, index: int, step: AttentionStep, row: np.ndarray) -> None:
        """Writes what the kernels need of a layer."""
        layer, kv = self._weights.layers[index], step.layers[index]
        rope = self._spec.layers[index].rope
        assert rope is not None
        row[Layer.ROPE], row[Layer.ROPE_PAIRS] = self._ropes[rope].data_ptr(), self._ropes[rope].shape[1] // 2
        row[Layer.K], row[Layer.V], row[Layer.GROUP] = kv.k.data_ptr(), kv.v.data_ptr(), kv.group
        row[Layer.WINDOW] = self._attn_specs[index].window or 0
        row[Layer.ATTN_NORM], row[Layer.ATTN_POST_NORM] = _address(layer.attn_norm), _address(layer.attn_post_norm)
        row[Layer.MLP_NORM], row[Layer.MLP_POST_NORM] = _address(layer.mlp_norm), _address(layer.mlp_post_norm)
        row[Layer.Q_NORM], row[Layer.K_NORM] = _address(layer.q_norm), _address(layer.k_norm)

    def _prepared(self, rows: int) -> Crew:
        """The crew, with the tables ready for so many rows and for its threads."""
        crew = self._crew_of(torch.get_num_threads())
        columns = tile_columns(rows) if self._tiled else 0
        self._table[Step.ROWS], self._table[Step.COLUMNS] = rows, columns
        self._table[Step.BLOCK_ROWS] = self._block_address + rows * self._block_line
        whole = self._whole_bytes if self._tiled else 0
        self._table[Step.WHOLE], used = whole, columns > 0 or whole > 0
        self._table[Step.TILES] = self._configurations[columns or 8] if used else 0
        self._counters.fill(0)
        return crew

    def _crew_of(self, threads: int) -> Crew:
        """The crew of so many threads, and what each of them needs."""
        if self._crew is not None and self._crew.size == threads:
            return self._crew
        if self._crew is not None:
            self._crew.close()
        self._crew = Crew(threads - 1)
        spec = self._spec
        floats = scratch_floats(MAX_ROWS, spec.hidden_size, spec.q_heads, spec.kv_heads, spec.head_size)
        size = -(-(floats * 4 + self._whole_bytes) // 4096) * 4096
        self._scratch = torch.zeros(threads * size, dtype=torch.uint8)  # begins where a line of the cache does
        phases = len(spec.layers) * PHASES + 2
        self._counters = np.zeros(counter_bytes(phases, threads) // 8, dtype=np.int64)
        self._table[Step.SCRATCH], self._table[Step.SCRATCH_SIZE] = self._scratch.data_ptr(), size
        self._table[Step.COUNTERS], self._table[Step.TEAM] = self._counters.ctypes.data, threads
        return self._crew


def _linears(weights: Weights) -> list[WeightRef]:
    """The head, then four of each layer."""
    refs = [weights.head]
    for layer in weights.layers:
        refs += [*layer.qkv, layer.o, *layer.gate_up, layer.down]
    return refs


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
