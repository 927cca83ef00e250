"""Helpers of the parity tests: tiny random checkpoints made by transformers, and a paged cache to run our models on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.attention.base import AttentionStep, LayerKV, Layout
from octavo.engine.attention.torch_backend import TorchBackend
from octavo.engine.load import checkpoint as checkpoints
from octavo.engine.model.base import CausalModel
from octavo.engine.model.build import build_model

PAGE_SIZE = 4


class PagedRun:
    """A model on a small paged cache whose pages are handed out in a shuffled order; the caller numbers the rows."""

    def __init__(self, model: CausalModel, pages: int = 64) -> None:
        self.model = model
        self.pages = pages
        self.lengths: dict[int, int] = {}
        self.tables: dict[int, list[list[int]]] = {}
        self._layers: list[LayerKV] = [None] * len(model.attn_specs)  # type: ignore[list-item]
        for number, group in enumerate(model.cache_groups):
            for layer in group.layers:
                k, v = (
                    torch.full((self.pages, p.heads, PAGE_SIZE, p.dim), float("nan"), dtype=model.dtype)
                    for p in group.planes
                )
                self._layers[layer] = LayerKV(k, v, number)
        order = torch.randperm(self.pages - 1, generator=torch.Generator().manual_seed(1)) + 1
        self._free = [order.tolist() for _ in model.cache_groups]
        self._backend = TorchBackend()

    def forward(self, rows: dict[int, Sequence[int]]) -> Tensor:
        """Computes new tokens of each row; returns float32 logits of all of them, row after row, decode rows first."""
        ordered = sorted(rows.items(), key=lambda item: len(item[1]) != 1)
        step, ids, positions = self._step(ordered)
        with torch.inference_mode():
            return self.model.logits(self.model.forward(ids, positions, step))

    def _step(self, rows: Sequence[tuple[int, Sequence[int]]]) -> tuple[AttentionStep, Tensor, Tensor]:
        groups = range(len(self.model.cache_groups))
        slots: list[list[int]] = [[] for _ in groups]
        ids, positions, starts, q_lens, kv_lens = [], [], [0], [], []
        for row, tokens in rows:
            begin = self.lengths.get(row, 0)
            tables = self.tables.setdefault(row, [[] for _ in groups])
            for position in range(begin, begin + len(tokens)):
                for group in groups:
                    if position // PAGE_SIZE >= len(tables[group]):
                        tables[group].append(self._free[group].pop())
                    slots[group].append(tables[group][position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE)
                positions.append(position)
            ids += tokens
            starts.append(len(ids))
            q_lens.append(len(tokens))
            self.lengths[row] = begin + len(tokens)
            kv_lens.append(self.lengths[row])
        most = max(len(self.tables[row][0]) for row, _ in rows)
        layout = Layout(
            q_start=torch.tensor(starts, dtype=torch.int32),
            q_pos=torch.tensor(positions),
            kv_len=torch.tensor(kv_lens, dtype=torch.int32),
            tables=tuple(
                torch.tensor(
                    [self.tables[row][group] + [0] * (most - len(self.tables[row][group])) for row, _ in rows],
                    dtype=torch.int32,
                )
                for group in groups
            ),
            write_slots=tuple(torch.tensor(s) for s in slots),
            page_size=PAGE_SIZE,
            num_rows=len(rows),
            num_tokens=len(ids),
            num_decode_rows=sum(n == 1 for n in q_lens),
            max_q=max(q_lens),
            max_kv=max(kv_lens),
            q_lens=tuple(q_lens),
            kv_lens=tuple(kv_lens),
        )
        plan = self._backend.plan(layout, self.model.cache_groups)
        return AttentionStep(self._backend, plan, self._layers), torch.tensor(ids), torch.tensor(positions)


@dataclass(frozen=True, slots=True)
class Reference:
    """A transformers model and the folder it was saved to."""

    model: Any
    path: Path

    def logits(self, ids: Sequence[int]) -> Tensor:
        """float32 [len(ids), vocab]."""
        with torch.inference_mode():
            return self.model(torch.tensor([list(ids)]), use_cache=False).logits[0].float()

    def load(self, **options: Any) -> CausalModel:
        """Our model from the saved files; float32 on the CPU unless `options` say otherwise."""
        settings = {"device": "cpu", "dtype": torch.float32, "context_length": 128, "fusion": True} | options
        with checkpoints.open_checkpoint(self.path) as checkpoint:
            return build_model(checkpoint, **settings)


@pytest.fixture
def paged() -> Callable[[CausalModel], PagedRun]:
    """Makes a PagedRun for a model."""
    return PagedRun


def _save(root: Path, config: Any, seed: int = 0, model_class: Any = None) -> Reference:
    import transformers

    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = (
        (model_class or transformers.AutoModelForCausalLM)._from_config(config)
        if model_class
        else (transformers.AutoModelForCausalLM.from_config(config))
    )
    model = model.float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.2 if parameter.dim() == 1 else 0.15
            if "router" in name or name.endswith("gate.weight"):
                spread = 0.5  # far-apart scores: a rounding difference must not choose another expert
            parameter.add_(torch.randn_like(parameter) * spread)
    folder = root / f"{config.model_type}-{seed}"
    model.save_pretrained(folder)
    return Reference(model, folder)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Reference]:
    """Makes and saves a random model from a transformers config, no weight left at its initial one or zero."""
    return partial(_save, tmp_path)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    """The same, for all tests of a file."""
    return partial(_save, tmp_path_factory.mktemp("saved"))
