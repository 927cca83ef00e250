"""Tiny models of transformers' own classes, in full precision and with loud channels, and texts to calibrate with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.model.build import build_model
from octavo.engine.model.families import plan_weights
from octavo.engine.model.spec import ModelSpec
from octavo.engine.perplexity import shipped_text
from octavo.engine.quant.calibrate.layer import Layer
from octavo.engine.quant.calibrate.run import Job
from octavo.engine.quant.calibrate.settings import Settings

SHAPE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_model(model_type, **config): the folder of `write_model`. The same wish gives the same folder."""
    made: dict[str, Path] = {}

    def make(model_type: str = "llama", **config: Any) -> Path:
        key = json.dumps([model_type, config], sort_keys=True)
        if key not in made:
            made[key] = write_model(tmp_path_factory.mktemp("models") / model_type, model_type, **config)
        return made[key]

    return make


def write_model(folder: Path, model_type: str = "llama", **config: Any) -> Path:
    """A folder with random float32 weights, some channels of every norm loud, and a tokenizer of bytes."""
    import transformers

    torch.manual_seed(3)
    full = transformers.AutoConfig.for_model(model_type, **SHAPE | config)
    model = transformers.AutoModelForCausalLM.from_config(full).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.1 if "embed" not in name else 1.0))
            if parameter.ndim == 1 and "norm" in name:
                parameter += 0.0 if "gemma" in model_type else 1.0
                if parameter.numel() == SHAPE["hidden_size"]:
                    parameter[5::23] += 8.0
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A token a byte, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(["<s>", "</s>", *letters])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def text() -> str:
    """Enough for two thousand tokens to calibrate with and some to measure with."""
    return shipped_text()[:4000]


@pytest.fixture
def job(tmp_path: Path, text: str, make_model: Callable[..., Path]) -> Callable[..., Job]:
    """job(method, **settings): a run over the small llama in float32, to tmp_path/out."""

    def make(method: str, *, model: Path | None = None, out: str = "out", **options: Any) -> Job:
        own = {name: options.pop(name) for name in list(options) if name in Settings.__slots__}
        chosen: dict[str, Any] = {"dtype": "float32", "tokens": 2048, "device": "cpu"} | options
        settings = Settings(method=method, **own)  # type: ignore[arg-type]
        return Job(model or make_model(), tmp_path / out, settings, text, "the text", **chosen)

    return make


@pytest.fixture
def read_layer(make_model: Callable[..., Path]) -> Callable[..., tuple[Layer, ModelSpec]]:
    """read_layer(model_type, index=0, **config): one layer of such a model."""

    def read(model_type: str = "llama", index: int = 0, **config: Any) -> tuple[Layer, ModelSpec]:
        with open_checkpoint(make_model(model_type, **config)) as checkpoint:
            spec = ModelSpec.from_config(checkpoint.config)
            plan = plan_weights(spec, checkpoint.tensors)
            mine = [source for source in plan.sources.values() if source.parts[0].startswith(f"layers.{index}.")]
            tensors = dict(checkpoint.stream([source.name for source in mine]))
        return Layer.gather(index, spec, mine, tensors, torch.device("cpu")), spec

    return read


@pytest.fixture
def paged() -> Callable[[Path], Any]:
    """paged(folder): Octavo's model of a folder, its weights packed, on a small cache."""
    from tests.parity.conftest import PagedRun

    def make(folder: Path) -> Any:
        with open_checkpoint(folder) as checkpoint:
            model = build_model(
                checkpoint, device="cpu", dtype=torch.float32, context_length=64, fusion=False, quantization="packed"
            )
        return PagedRun(model)

    return make


@pytest.fixture
def problem() -> tuple[Tensor, Tensor]:
    """(weight [96, 256], inputs [600, 256]) in full precision: dependent channels, eight of them loud."""
    generator = torch.Generator().manual_seed(11)
    weight = torch.randn(96, 256, generator=generator) * 0.05
    mixed = torch.randn(600, 64, generator=generator) @ torch.randn(64, 256, generator=generator) / 8
    inputs = mixed + 0.3 * torch.randn(600, 256, generator=generator)
    inputs[:, torch.randperm(256, generator=generator)[:8]] *= 30
    return weight, inputs
