"""Checkpoints in memory, for tests of what is read from one and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.load.checkpoint import Checkpoint, TensorInfo


class MemoryCheckpoint(Checkpoint):
    """Tensors by name, said to lie in model.safetensors; counts what is streamed."""

    kind = "safetensors"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.path = Path("tiny-model")
        self.config = config
        self.generation_config = {}
        self.held = tensors
        self.streamed: list[str] = []
        file = self.path / "model.safetensors"
        self.tensors = {
            name: TensorInfo(name, "F32", tuple(t.shape), file, t.numel() * t.element_size())
            for name, t in tensors.items()
        }

    def stream(
        self, names: Collection[str] | None = None, dtype: torch.dtype | None = None, *, pinned: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        for name in self.held if names is None else names:
            self.streamed.append(name)
            yield name, self.held[name].to(dtype or self.held[name].dtype)

    def load_tokenizer(self) -> Any:
        raise NotImplementedError


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    """A llama config with grouped heads and an untied head."""
    return dict(CONFIG)


@pytest.fixture
def memory_checkpoint() -> Callable[..., MemoryCheckpoint]:
    """Makes a checkpoint of a config (default: the tiny llama) as transformers would save it, random weights."""
    import transformers

    def make(config: dict[str, Any] | None = None, **changes: Any) -> MemoryCheckpoint:
        full = (CONFIG if config is None else config) | changes
        torch.manual_seed(0)
        made = transformers.AutoConfig.for_model(**full)
        model = transformers.AutoModelForCausalLM.from_config(made)
        return MemoryCheckpoint(full, {name: t.clone() for name, t in model.state_dict().items()})

    return make


@pytest.fixture
def saved_model(tmp_path: Path) -> Callable[[str], Checkpoint]:
    """Saves a random model of a transformers family and the tiny sizes, and opens it."""
    import transformers

    from octavo.engine.load.checkpoint import open_checkpoint

    def make(family: str) -> Checkpoint:
        config = transformers.AutoConfig.for_model(**CONFIG | {"model_type": family, "architectures": None})
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        return open_checkpoint(tmp_path)

    return make
