"""Which formats make a few chats quicker, and which only smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.app.library.fit import Wish, alternatives, sketch_path
from octavo.app.library.pace import pace
from octavo.app.library.weights import Holding, quantizations

DENSE: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
MIXTURE = {
    **DENSE,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def held(name: str, **changed: Any) -> Holding:
    wanted = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "fusion": True, **changed}
    return Holding(name, False, **wanted)


def quicker(config: dict[str, Any], **changed: Any) -> set[str]:
    return {name for name in quantizations() if pace(config, None, held(name, **changed)) == "quicker"}


def test_on_the_cpu_the_formats_that_the_compiled_step_reads_are_quicker() -> None:
    assert quicker(DENSE) == {"int8", "int4", "int4-symmetric"}
    assert pace(DENSE, None, held("none")) == "same"
    assert pace(DENSE, None, held("fp8")) == "slower"


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        (DENSE, {"fusion": False}),
        (DENSE, {"dtype": torch.float16}),
        (MIXTURE, {}),
        ({**DENSE, "intermediate_size": 100}, {}),
    ],
    ids=["fusion off", "float16", "experts", "odd sizes"],
)
def test_where_no_kernel_reads_the_codes_every_format_is_slower(
    config: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert quicker(config, **changed) == set()


def test_weights_kept_as_a_gguf_file_has_them_are_slower(starter_path: Path) -> None:
    found = {fit.quantization: fit.pace for fit in alternatives(sketch_path(starter_path), Wish(device="cpu"))}
    assert found["none"] == "same"
    assert found["packed"] == "slower"
    assert {"int4": "quicker", "nf4": "slower"}.items() <= found.items()
