"""The decoder on a CUDA GPU: fused and textbook scores agree for every family, experts run without asking the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo.engine.attention import choose_backend
from octavo.engine.attention.base import AttentionStep, LayerKV, Layout
from octavo.engine.model.build import build_random

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")]

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
}
EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "smollm3": {"num_hidden_layers": 5},
    "mistral": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "sliding_window_pattern": 2},
    "phi3": {"partial_rotary_factor": 0.75},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.2, "attention_multiplier": 0.1},
    "olmo2": {},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True},
}
PAGE_SIZE = 16


def model(family: str, dtype: torch.dtype, fusion: bool) -> Any:
    return build_random(
        SIZES | {"model_type": family} | FAMILIES[family], device="cuda", dtype=dtype, context_length=256, fusion=fusion
    )


class Rows:
    """Four rows of 60 tokens on pages of their own: a prompt of each but its last token, then the last ones."""

    def __init__(self, decoder: Any, fusion: bool) -> None:
        self.decoder = decoder
        self.backend = choose_backend(decoder.device, decoder.dtype, decoder.attn_specs, fusion)
        self.layers: list[Any] = [None] * len(decoder.attn_specs)
        for number, group in enumerate(decoder.cache_groups):
            for layer in group.layers:
                planes = [
                    torch.zeros((17, p.heads, PAGE_SIZE, p.dim), dtype=decoder.dtype, device="cuda")
                    for p in group.planes
                ]
                self.layers[layer] = LayerKV(*planes, number)

    def layout(self, begin: int, end: int) -> tuple[Layout, torch.Tensor, torch.Tensor]:
        count, groups = end - begin, len(self.decoder.cache_groups)
        table = 1 + torch.arange(16, dtype=torch.int32, device="cuda").view(4, 4)
        positions = torch.arange(begin, end, device="cuda").repeat(4)
        rows = torch.arange(4, device="cuda").repeat_interleave(count)
        slots = table[rows, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        layout = Layout(
            q_start=torch.arange(5, dtype=torch.int32, device="cuda") * count,
            q_pos=positions,
            kv_len=torch.full((4,), end, dtype=torch.int32, device="cuda"),
            tables=(table,) * groups,
            write_slots=(slots.long(),) * groups,
            page_size=PAGE_SIZE,
            num_rows=4,
            num_tokens=4 * count,
            num_decode_rows=4 if count == 1 else 0,
            max_q=count,
            max_kv=end,
            q_lens=(count,) * 4,
            kv_lens=(end,) * 4,
        )
        ids = (positions * 7 + rows * 31 + 5) % SIZES["vocab_size"]
        return layout, ids, positions

    def step(self, layout: Layout) -> AttentionStep:
        return AttentionStep(self.backend, self.backend.plan(layout, self.decoder.cache_groups), self.layers)

    def scores(self) -> torch.Tensor:
        """float32 [4 * 60, vocab]: all tokens of the prompts, then the last tokens."""
        with torch.inference_mode():
            results = []
            for begin, end in ((0, 59), (59, 60)):
                layout, ids, positions = self.layout(begin, end)
                hidden = self.decoder.forward(ids, positions, self.step(layout))
                results.append(self.decoder.logits(hidden))
        return torch.cat(results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_scores_are_those_of_the_textbook(family: str, dtype: torch.dtype) -> None:
    decoder = model(family, dtype, fusion=True)
    plain = model(family, dtype, fusion=False)
    copy_weights(decoder, plain)
    fused, textbook = Rows(decoder, True).scores(), Rows(plain, False).scores()
    error = (fused - textbook).norm() / textbook.norm()
    assert error < (1e-4 if dtype == torch.float32 else 3e-2)


def copy_weights(merged: Any, single: Any) -> None:
    """Gives a model with separate parts the weights of one with merged ones."""
    for name, vector in merged.weights._vectors.items():
        single.weights._vectors[name].copy_(vector)
    for part, places in single.weights._places.items():
        ref, row = places[0]
        source, first = merged.weights._places[part][0]
        rows = next(p.rows for p in source.spec.parts if p.name == part)
        target = ref.acquire().weight
        target.narrow(-2, row, rows).copy_(source.acquire().weight.narrow(-2, first, rows))
        if ref.acquire().bias is not None:
            ref.acquire().bias[row : row + rows].copy_(source.acquire().bias[first : first + rows])


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_decode_step_can_be_captured_and_reads_new_tokens_when_replayed(family: str) -> None:
    decoder = model(family, torch.bfloat16, fusion=True)
    assert decoder.capturable
    rows = Rows(decoder, True)
    rows.scores()
    layout, ids, positions = rows.layout(59, 60)
    with torch.inference_mode():
        decoder.logits(decoder.forward(ids, positions, rows.step(layout)))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = decoder.logits(decoder.forward(ids, positions, rows.step(layout)))
        for seed in range(3):
            ids.copy_((ids * 3 + seed) % SIZES["vocab_size"])
            graph.replay()
            replayed = captured.clone()
            eager = decoder.logits(decoder.forward(ids, positions, rows.step(layout)))
            torch.testing.assert_close(replayed, eager, atol=2e-2, rtol=2e-2)
