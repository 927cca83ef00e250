"""A layer run by itself: as transformers runs it, whole, and unchanged by factors that are folded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.engine.load.checkpoint import open_checkpoint
from octavo.engine.quant.calibrate.inputs import Inputs
from octavo.engine.quant.calibrate.layer import SLOTS
from octavo.engine.quant.calibrate.walk import Walk

# a plain one; biases; merged linears; norms stored less one, before and behind, and windows; none before
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen2", {}),
    ("phi3", {"sliding_window": None}),
    ("gemma3_text", {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}),
    ("olmo2", {}),
]
LENGTH = 48


def start(walk: Walk, folder: Path) -> tuple[Tensor, Tensor]:
    """Token ids [3, LENGTH] and their embeddings."""
    windows = torch.randint(2, 250, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    with open_checkpoint(folder) as checkpoint:
        return windows, walk.embed(checkpoint.read("model.embed_tokens.weight"), windows)


@pytest.mark.parametrize(("family", "config"), FAMILIES)
def test_layer_by_layer_the_hidden_states_are_transformers(
    family: str, config: dict[str, Any], make_model: Callable[..., Path], read_layer: Callable[..., Any]
) -> None:
    import transformers

    folder = make_model(family, **config)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    spec = read_layer(family, **config)[1]
    walk = Walk(spec, LENGTH, device=torch.device("cpu"), dtype=torch.float32)
    walk.batch = 2  # the third window comes in another batch
    windows, hidden = start(walk, folder)
    with torch.inference_mode():
        wanted = model(windows, output_hidden_states=True).hidden_states
        torch.testing.assert_close(hidden, wanted[0], rtol=1e-5, atol=1e-5)
        hidden = walk.through(read_layer(family, 0, **config)[0], hidden)
        torch.testing.assert_close(hidden, wanted[1], rtol=1e-4, atol=1e-3)
        hidden = walk.through(read_layer(family, 1, **config)[0], hidden)
        torch.testing.assert_close(model.model.norm(hidden), wanted[2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("family", "config"), FAMILIES)
def test_folded_factors_change_nothing_but_what_the_linears_read(
    family: str, config: dict[str, Any], make_model: Callable[..., Path], read_layer: Callable[..., Any]
) -> None:
    layer, spec = read_layer(family, **config)
    walk = Walk(spec, LENGTH, device=torch.device("cpu"), dtype=torch.float32)
    _, hidden = start(walk, make_model(family, **config))
    generator = torch.Generator().manual_seed(4)
    with torch.inference_mode():
        before = {slot: Inputs(hidden[..., 0].numel(), samples=32, gram=False) for slot in SLOTS}
        wanted = walk.through(layer, hidden, before)
        folded = [slot for slot in SLOTS if layer.folds(slot)]
        assert folded == (["o", "down"] if family == "olmo2" else list(SLOTS))
        factors = {}
        for slot in folded:
            width = layer.reading(slot)[0].weight.shape[1]
            scales = layer.tied(slot, torch.rand(width, generator=generator) * 4 + 0.25)
            factors[slot] = layer.fold(slot, scales, torch.bfloat16)
            torch.testing.assert_close(factors[slot], scales, rtol=0.03, atol=0)
        after = {slot: Inputs(hidden[..., 0].numel(), samples=32, gram=False) for slot in SLOTS}
        found = walk.through(layer, hidden, after)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        for slot, scales in factors.items():
            torch.testing.assert_close(after[slot].sample * scales, before[slot].sample, rtol=1e-2, atol=1e-2)
            assert float((after[slot].sample - before[slot].sample).abs().max()) > 0.1
        for norm in layer.norms.values():
            if norm.weight.numel() == spec.hidden_size and family != "olmo2" and "post" not in norm.name:
                assert torch.equal(norm.weight, norm.weight.bfloat16().float())


def test_a_norm_of_zero_keeps_its_channel(read_layer: Callable[..., Any]) -> None:
    layer, _ = read_layer()
    layer.norms["attn_norm"].weight[7] = 0.0
    weight = layer.reading("qkv")[0].weight.clone()
    scales = layer.fold("qkv", torch.full((64,), 3.0), torch.bfloat16)
    assert scales[7] == 1.0
    assert layer.norms["attn_norm"].weight[7] == 0.0
    assert torch.equal(layer.reading("qkv")[0].weight[:, 7], weight[:, 7])


def test_inputs_are_gathered_over_batches() -> None:
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    inputs = Inputs(100, samples=10, gram=True)
    for batch in x.split(33):
        inputs.add(batch)
    torch.testing.assert_close(inputs.mean, x.abs().mean(0))
    torch.testing.assert_close(inputs.largest, x.abs().amax(0))
    torch.testing.assert_close(inputs.gram, x.T @ x)
    assert torch.equal(inputs.sample, x[::10])
