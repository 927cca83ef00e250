"""Rotary frequencies: those of transformers for every kind, the published figures, fixed by the context length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.engine.model.ops import rotate
from octavo.engine.model.rotary import RopeSpec, cos_sin_table, inverse_frequencies, yarn_ramp

LONG = {"short_factor": [1.0 + i / 16 for i in range(16)], "long_factor": [1.0 + i / 2 for i in range(16)]}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn-given-factor": {"factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.7},
    "yarn-mscale": {"factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.8},
    "yarn-unrounded": {"factor": 32.0, "original_max_position_embeddings": 64, "truncate": False, "beta_fast": 16},
    "longrope": {**LONG, "original_max_position_embeddings": 512},
    "longrope-factor": {**LONG, "original_max_position_embeddings": 512, "factor": 16.0},
    "longrope-given-factor": {**LONG, "original_max_position_embeddings": 512, "attention_factor": 1.2},
}


def both(
    kind: str, length: int, theta: float = 50_000.0
) -> tuple[tuple[torch.Tensor, float], tuple[torch.Tensor, float]]:
    """Ours and transformers' frequencies and factor for head size 32 and 2048 positions."""
    rope_type = kind.split("-")[0]
    parameters = {"rope_type": rope_type, "rope_theta": theta} | KINDS[kind]
    spec = RopeSpec.from_parameters(parameters, head_size=32, max_positions=2048, theta=10_000.0)
    config = tf.LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=2048, rope_parameters=dict(parameters)
    )
    return inverse_frequencies(spec, length), ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", seq_len=length)


@pytest.mark.parametrize("length", [300, 2048, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_those_of_transformers(kind: str, length: int) -> None:
    (ours, our_factor), (theirs, their_factor) = both(kind, length)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert our_factor == pytest.approx(their_factor, rel=1e-6)


@pytest.mark.parametrize(
    ("rot_dim", "theta", "factor", "trained", "truncate", "ramp", "temperature"),
    [
        (128, 1e6, 4.0, 32_768, True, (23, 40), 1.138629),  # Qwen3
        (64, 1e4, 40.0, 4096, True, (10, 23), 1.368888),  # DeepSeek-V3
        (64, 150_000.0, 32.0, 4096, False, (8.0928, 17.3980), 1.346574),  # gpt-oss
    ],
)
def test_yarn_gives_the_published_figures(
    rot_dim: int,
    theta: float,
    factor: float,
    trained: int,
    truncate: bool,
    ramp: tuple[float, float],
    temperature: float,
) -> None:
    parameters = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
    spec = RopeSpec.from_parameters(
        parameters | {"truncate": truncate}, head_size=rot_dim, max_positions=trained, theta=theta
    )
    assert yarn_ramp(spec) == pytest.approx(ramp, abs=1e-4)
    assert inverse_frequencies(spec, trained)[1] == pytest.approx(temperature, abs=1e-6)


def test_only_dynamic_and_longrope_depend_on_the_context_length() -> None:
    changes = {kind for kind in KINDS if not torch.equal(both(kind, 300)[0][0], both(kind, 5000)[0][0])}
    assert changes == {"dynamic", "longrope", "longrope-factor", "longrope-given-factor"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_holds_cosines_then_sines_with_the_factor(kind: str) -> None:
    parameters = {"rope_type": kind.split("-")[0]} | KINDS[kind]
    spec = RopeSpec.from_parameters(parameters, head_size=32, max_positions=2048, theta=10_000.0)
    frequencies, factor = inverse_frequencies(spec, 700)
    table = cos_sin_table(spec, 700)
    assert table.shape == (700, 32)
    assert table.dtype == torch.float32
    angles = 699 * frequencies.double()
    torch.testing.assert_close(table[699, :16].double(), angles.cos() * factor, atol=1e-4, rtol=0)
    torch.testing.assert_close(table[699, 16:].double(), angles.sin() * factor, atol=1e-4, rtol=0)


def test_scores_depend_on_the_distance_alone() -> None:
    spec = RopeSpec.from_parameters({}, head_size=32, max_positions=512, theta=10_000.0)
    table = cos_sin_table(spec, 512)
    q, k = torch.randn(2, 1, 1, 32, generator=torch.Generator().manual_seed(3))

    def score(m: int, n: int) -> float:
        turned = [rotate(x, *table[at].view(1, 1, 32).chunk(2, -1)) for x, at in ((q, m), (k, n))]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(409, 404), abs=1e-4)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_a_part_of_the_head_can_stay_unrotated() -> None:
    spec = RopeSpec.from_parameters({"partial_rotary_factor": 0.75}, head_size=32, max_positions=64, theta=10_000.0)
    assert spec.rot_dim == 24
    x = torch.randn(1, 2, 32)
    turned = rotate(x, *cos_sin_table(spec, 64)[5].view(1, 1, 24).chunk(2, -1))
    assert torch.equal(turned[..., 24:], x[..., 24:])
    assert not torch.equal(turned[..., :24], x[..., :24])


def test_phi3_takes_its_old_names_for_longrope() -> None:
    spec = RopeSpec.from_parameters(
        {"type": "su", **LONG}, head_size=32, max_positions=2048, theta=10_000.0, original_max=512
    )
    assert (spec.kind, spec.original_max, spec.factor) == ("longrope", 512, 4.0)
