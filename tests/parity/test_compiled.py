"""Decode steps through the CPU's compiled kernels: transformers' scores, whatever the sizes, threads and company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers as tf

from octavo.engine.attention.base import AttentionStep
from octavo.engine.model.base import CausalModel
from octavo.engine.model.compiled import CompiledDecode, Entry

pytest.importorskip("numba")

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def configs() -> dict[str, Any]:
    """Every head size, group and extra that the kernels know; windows shorter than the prompt."""
    return {
        "llama": tf.LlamaConfig(**SIZES, tie_word_embeddings=True),
        "llama-mha-biases": tf.LlamaConfig(
            **SIZES | {"num_key_value_heads": 6, "head_dim": 32}, attention_bias=True, mlp_bias=True
        ),
        "llama-mqa": tf.LlamaConfig(**SIZES | {"num_key_value_heads": 1}),
        "llama-large-group": tf.LlamaConfig(
            **SIZES | {"hidden_size": 288, "num_attention_heads": 9, "num_key_value_heads": 1}
        ),
        "llama-96": tf.LlamaConfig(**SIZES | {"head_dim": 96}),
        "mistral-window": tf.MistralConfig(**SIZES | {"head_dim": 128}, sliding_window=9),
        "qwen2": tf.Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"} | {"hidden_size": 192}),
        "qwen3": tf.Qwen3Config(**SIZES | {"head_dim": 128}),
        "gemma2": tf.Gemma2Config(**SIZES | {"head_dim": 256}, sliding_window=8, query_pre_attn_scalar=24),
        "gemma3_text": tf.Gemma3TextConfig(**SIZES | {"num_hidden_layers": 7}, sliding_window=8),
        "phi3-partial": tf.Phi3Config(
            **{k: v for k, v in SIZES.items() if k != "head_dim"} | {"hidden_size": 192, "num_attention_heads": 6},
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        ),
        "granite": tf.GraniteConfig(
            **{k: v for k, v in SIZES.items() if k != "head_dim"} | {"hidden_size": 192},
            embedding_multiplier=3.0,
            attention_multiplier=0.2,
            residual_multiplier=0.4,
            logits_scaling=2.5,
        ),
    }


PROMPT = torch.randint(0, 101, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    """Two threads, so that the work is really shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def compiled_part(model: CausalModel) -> CompiledDecode:
    compiled = model.ops.compiled  # type: ignore[attr-defined]
    assert compiled is not None
    assert compiled.wait(), "the kernels could not be compiled"
    return compiled


class Spy:
    """Counts the steps that went through the kernels."""

    def __init__(self, compiled: CompiledDecode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.heads = 0
        forward, head = compiled.forward, compiled.head

        def watched_forward(hidden: torch.Tensor, positions: torch.Tensor, step: AttentionStep) -> torch.Tensor | None:
            result = forward(hidden, positions, step)
            self.steps += result is not None
            return result

        def watched_head(x: torch.Tensor) -> torch.Tensor | None:
            result = head(x)
            self.heads += result is not None
            return result

        monkeypatch.setattr(compiled, "forward", watched_forward)
        monkeypatch.setattr(compiled, "head", watched_head)


@pytest.mark.parametrize("name", sorted(configs()))
def test_scores_of_single_tokens_equal_those_of_transformers(
    name: str, saved: Callable[..., Any], paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = saved(configs()[name])
    model = reference.load()
    spy = Spy(compiled_part(model), monkeypatch)
    run = paged(model)
    run.forward({0: PROMPT[:20]})
    ours = torch.cat([run.forward({0: [token]}) for token in PROMPT[20:32]])
    torch.testing.assert_close(ours, reference.logits(PROMPT[:32])[20:], atol=1e-4, rtol=1e-4)
    assert spy.steps == spy.heads == 12


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_steps_scores_are_those_of_the_head_alone(
    llama: Any, paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype
) -> None:
    model = llama.load(dtype=dtype)
    compiled, given = compiled_part(model), []
    forward, head = compiled.forward, compiled.head
    monkeypatch.setattr(compiled, "forward", lambda *arguments: given.append(forward(*arguments)) or given[-1])
    run = paged(model, 128)
    for row, prompt in prompts(rows).items():
        run.forward({row: prompt})
    scores = run.forward({row: [row + 3] for row in range(rows)})
    hidden = given[-1]
    assert torch.equal(head(hidden), scores), "they are given once, then computed"


@pytest.fixture
def llama(saved: Callable[..., Any]) -> Any:
    return saved(configs()["llama"])


def prompts(count: int) -> dict[int, list[int]]:
    """Rows of different lengths."""
    return {row: PROMPT[row : row + 1 + (5 * row) % 17] for row in range(count)}


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 13, 16])
def test_a_row_gives_the_same_bits_in_any_company(llama: Any, paged: Callable[..., Any], rows: int) -> None:
    model = llama.load()
    compiled_part(model)
    together = paged(model, 128)
    for row, prompt in prompts(rows).items():
        together.forward({row: prompt})
    company = together.forward({row: [row + 3] for row in range(rows)})
    for row, prompt in prompts(rows).items():
        alone = paged(model)
        alone.forward({0: prompt})
        assert torch.equal(alone.forward({0: [row + 3]})[0], company[row])


def test_any_number_of_threads_gives_the_same_bits(llama: Any, paged: Callable[..., Any]) -> None:
    results = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        model = llama.load()
        compiled_part(model)
        run = paged(model)
        run.forward({0: PROMPT[:11], 1: PROMPT[:19]})
        results.append(run.forward({0: [5], 1: [6]}))
    torch.set_num_threads(2)
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_bfloat16_agrees_up_to_its_rounding(llama: Any, paged: Callable[..., Any], rows: int) -> None:
    exact, rounded = llama.load(), llama.load(dtype=torch.bfloat16)
    compiled_part(rounded)
    one, other = paged(exact, 128), paged(rounded, 128)
    for row, prompt in prompts(rows).items():
        one.forward({row: prompt})
        other.forward({row: prompt})
    new = {row: [row + 3] for row in range(rows)}
    expected, actual = one.forward(new), other.forward(new)
    assert (actual - expected).abs().max() < 0.03 * expected.abs().max()


QUANTIZED = ["int8", "int4", "int4-symmetric"]


def reference_only(model: CausalModel) -> CausalModel:
    """Its products by torch decode the whole weight: those of 8-bit ones would round activations from five rows on."""
    weights = model.weights  # type: ignore[attr-defined]
    for layer in weights.layers:
        for ref in (*layer.qkv, layer.o, *layer.gate_up, layer.down):
            ref.acquire().products = ()
    weights.head.acquire().products = ()
    return model


@pytest.mark.parametrize("quantization", QUANTIZED)
@pytest.mark.parametrize("name", ["llama", "llama-mha-biases"])
def test_codes_give_what_their_decoded_weights_give(
    name: str, quantization: str, saved: Callable[..., Any], paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, options = saved(configs()[name]), {"quantization": quantization, "quantize_head": name != "llama"}
    model, piecewise = (reference_only(reference.load(**options)) for _ in range(2))
    spy = Spy(compiled_part(model), monkeypatch)
    piecewise.ops.compiled = None  # type: ignore[attr-defined]
    ours, theirs = paged(model, 128), paged(piecewise, 128)
    for row, prompt in prompts(16).items():
        ours.forward({row: prompt})
        theirs.forward({row: prompt})
    for rows in (1, 7, 16):
        new = {row: [row + 3] for row in range(rows)}
        actual, expected = ours.forward(new), theirs.forward(new)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(actual.argmax(-1), expected.argmax(-1))
    assert spy.steps >= 3
    assert spy.heads >= 3


@pytest.mark.parametrize("quantization", QUANTIZED[:2])
@pytest.mark.parametrize("rows", [2, 3, 6, 11])
def test_a_row_times_codes_gives_the_same_bits_in_any_company(
    llama: Any, paged: Callable[..., Any], quantization: str, rows: int
) -> None:
    model = llama.load(quantization=quantization, quantize_head=True)
    compiled_part(model)
    together, alone = paged(model, 128), paged(model, 128)
    for row in range(rows):  # one prompt, whose rows only differ in what comes next
        together.forward({row: PROMPT[:9]})
        alone.forward({row: PROMPT[:9]})
    company = together.forward({row: [row + 3] for row in range(rows)})
    for row in range(rows):
        assert torch.equal(alone.forward({row: [row + 3]})[0], company[row])


@pytest.mark.parametrize("quantization", QUANTIZED[:2])
@pytest.mark.parametrize("rows", [1, 16])
def test_codes_beside_bfloat16_agree_up_to_its_rounding(
    llama: Any, paged: Callable[..., Any], quantization: str, rows: int
) -> None:
    model, piecewise = (llama.load(quantization=quantization, dtype=torch.bfloat16) for _ in range(2))
    compiled_part(model)
    piecewise.ops.compiled = None
    one, other = paged(piecewise, 128), paged(model, 128)
    for row, prompt in prompts(rows).items():
        one.forward({row: prompt})
        other.forward({row: prompt})
    new = {row: [row + 3] for row in range(rows)}
    expected, actual = one.forward(new), other.forward(new)
    assert (actual - expected).abs().max() < 0.03 * expected.abs().max()


@pytest.mark.parametrize(("quantization", "tokens"), [("int8", 30), ("int4", 9), ("int4-symmetric", 30)])
def test_prompts_are_multiplied_by_codes_that_the_kernels_widen(
    llama: Any, paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, quantization: str, tokens: int
) -> None:
    options = {"quantization": quantization, "quantize_head": True, "dtype": torch.bfloat16}
    model, reference = llama.load(**options), reference_only(llama.load(**options))
    compiled = compiled_part(model)
    expected = paged(reference).forward({0: PROMPT[:tokens]})
    actual = paged(model).forward({0: PROMPT[:tokens]})
    assert (actual - expected).abs().max() < 0.05 * expected.abs().max()
    run = model.weights.layers[0].down.acquire().products[3]
    x = torch.randn((tokens, 96), dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    down = model.weights.layers[0].down
    torch.testing.assert_close(run(x, down.acquire()), down.format.linear(x, down.acquire()), atol=0.05, rtol=0.02)
    with monkeypatch.context() as patch:  # until they are there
        patch.setattr(compiled._entry, "_function", None)
        torch.testing.assert_close(run(x, down.acquire()), down.format.linear(x, down.acquire()), atol=0.05, rtol=0.02)
    asked: list[int] = []
    widen = compiled._widen

    def watched(linear: int, first: int, width: int, target: torch.Tensor) -> bool:
        asked.append(first)
        return widen(linear, first, width, target)

    monkeypatch.setattr(compiled._prompts, "_widen", lambda: watched)
    monkeypatch.setattr("octavo.engine.model.compiled_prompt._RUN", 96 * 40)  # rows 0 to 39, 40 to 79, 56 to 95
    again = run(x, down.acquire())
    assert asked == [0, 40, 56]
    torch.testing.assert_close(again, down.format.linear(x, down.acquire()), atol=0.05, rtol=0.02)


def test_more_rows_and_mixed_steps_are_left_to_the_single_operations(
    llama: Any, paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama.load()
    spy = Spy(compiled_part(model), monkeypatch)
    run = paged(model, 128)
    run.forward({row: [row, 2] for row in range(17)})
    run.forward({row: [row] for row in range(17)})
    run.forward({0: [5], 1: PROMPT[:3]})
    assert spy.steps == 0
    run.forward({0: [5], 1: [6]})
    assert spy.steps == 1


def test_a_row_whose_numbers_are_lost_does_not_spoil_its_neighbours(llama: Any, paged: Callable[..., Any]) -> None:
    for rows in (2, 6):
        model = llama.load(dtype=torch.bfloat16)
        compiled_part(model)
        clean, spoiled = paged(model, 128), paged(model, 128)
        for row, prompt in prompts(rows).items():
            clean.forward({row: prompt})
            spoiled.forward({row: prompt})
        page = spoiled.tables[1][0][0]
        spoiled._layers[0].k[page] = float("nan")
        new = {row: [row + 7] for row in range(rows)}
        expected, actual = clean.forward(new), spoiled.forward(new)
        assert actual[1].isnan().all()
        assert torch.equal(torch.cat((actual[:1], actual[2:])), torch.cat((expected[:1], expected[2:])))


def test_until_the_kernels_are_there_the_operations_run_one_by_one(
    llama: Any, paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama.load()
    compiled = compiled_part(model)
    run = paged(model)
    run.forward({0: PROMPT[:9]})
    expected = run.forward({0: [3]})
    monkeypatch.setattr(compiled._entry, "_function", None)
    spy = Spy(compiled, monkeypatch)
    other = paged(model)
    other.forward({0: PROMPT[:9]})
    torch.testing.assert_close(other.forward({0: [3]}), expected, atol=1e-4, rtol=1e-4)
    assert spy.steps == 0


def test_without_numba_nothing_is_lost_but_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr("octavo.engine.model.compiled.compile_entry", missing)
    entry = Entry("float32")
    assert not entry.wait()
    assert entry.function is None


def test_without_fusion_there_are_no_kernels(llama: Any) -> None:
    assert not hasattr(llama.load(fusion=False).ops, "compiled")
