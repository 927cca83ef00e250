"""The whole engine on a CUDA GPU: same text with and without kernels, graphs and pages; the starter; an 8B shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

NEW = 48
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
SHAPE = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=64),
    "gemma2": lambda: transformers.Gemma2Config(**SHAPE, sliding_window=64, query_pre_attn_scalar=64),
}
BASE = EngineConfig(device="cuda", dtype="float32", context_length=512, kv_memory_bytes=256 << 20, max_running=16)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = [1, 15, 16, 17, 100, 230, 64, 33, 5]
    shared = torch.randint(3, 1000, (40,), generator=generator).tolist()
    made = [torch.randint(3, 1000, (n,), generator=generator).tolist() for n in lengths]
    return [*made, shared + made[1], shared + made[3]]


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Engines on a saved model of a family with random weights; closed at the end."""
    made: list[Engine] = []

    def make(family: str, **changes: Any) -> Engine:
        folder = tmp_path / family
        if not folder.exists():
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.05)
            model.save_pretrained(folder)
            words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(1024)}, unk_token="w0"))
            transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
        made.append(Engine.load(folder, replace(BASE, **changes)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    torch.cuda.empty_cache()


def replies(engine: Engine) -> list[tuple[int, ...]]:
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts()]
    return [handle.result().token_ids for handle in handles]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_way_of_running_says_the_same_in_float32(family: str, make_engine: Callable[..., Engine]) -> None:
    expected = replies(make_engine(family, fusion=False))
    assert all(len(tokens) == NEW for tokens in expected)
    fused = make_engine(family)
    assert replies(fused) == expected
    assert replies(fused) == expected, "a second time, from cached pages and captured graphs"
    assert replies(make_engine(family, paged_attention=False)) == expected
    assert replies(make_engine(family, prefill_chunk=24)) == expected
    assert replies(make_engine(family, max_running=3)) == expected


def test_decode_steps_are_replayed_from_graphs(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine("llama")
    replies(engine)
    graphs = engine._core._runner._graphs  # type: ignore[attr-defined]
    assert graphs is not None
    assert any(captured is not None for captured in graphs._captured.values())
    assert None not in graphs._captured.values()


def test_nothing_is_read_from_the_trash_page_or_written_to_free_pages(make_engine: Callable[..., Engine]) -> None:
    expected = replies(make_engine("llama"))
    engine = make_engine("llama")
    cache = engine._core._runner.cache  # type: ignore[attr-defined]
    for layer in cache.layers:
        layer.k.fill_(float("nan"))
        layer.v.fill_(float("nan"))
    assert replies(engine) == expected
    held = set(engine._core.scheduler.prefix.cached_pages(0))
    free = [page for page in range(1, cache.num_pages[0]) if page not in held]
    untouched = engine._core.scheduler.pools[0].num_pages - max(held) - 64
    assert untouched > 0
    for layer in cache.layers:
        assert layer.k[free[-untouched:]].isnan().all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_replies_take_what_is_best_within_the_rounding(
    dtype: str, make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    """Every token of a reply, by a float32 model's scores for that reply."""
    said = replies(make_engine("llama", dtype=dtype))
    exact = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype=torch.float32).cuda()
    rounded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype=getattr(torch, dtype)).cuda()
    for prompt, reply in zip(prompts(), said, strict=True):
        ids = torch.tensor([[*prompt, *reply]], device="cuda")
        with torch.inference_mode():
            scores, others = (model(ids).logits[0, len(prompt) - 1 : -1].float() for model in (exact, rounded))
        missed = scores.amax(-1) - scores.gather(1, torch.tensor(reply, device="cuda")[:, None])[:, 0]
        assert float(missed.max()) <= 3 * float((others - scores).abs().max())


def test_a_seed_gives_the_same_reply_in_any_company(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine("llama", prefix_sharing=False)
    params = replace(GREEDY, temperature=0.9, top_p=0.95, seed=11)
    alone = engine.submit(prompts()[4], params).result().token_ids
    others = [engine.submit(prompt, replace(params, seed=i)) for i, prompt in enumerate(prompts())]
    again = engine.submit(prompts()[4], params)
    assert again.result().token_ids == alone
    for handle in others:
        handle.abort()


def test_an_8b_shape_runs_in_bfloat16(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free GPU memory")
    engine = Engine.load("shape:llama-8b", EngineConfig(device="cuda", context_length=2048, max_running=8))
    handles = [engine.submit(list(range(3, 503)), replace(GREEDY, max_tokens=32)) for _ in range(8)]
    texts = {handle.result().token_ids for handle in handles}
    assert all(len(text) == 32 for text in texts)
    assert engine.status().counters["cached_prompt_tokens"] >= 7 * 480
    engine.close()


def test_the_starter_says_the_same_as_on_the_cpu() -> None:
    path = os.environ.get("OCTAVO_STARTER")
    if not path:
        pytest.skip("OCTAVO_STARTER does not name the starter's file")
    config = EngineConfig(dtype="float32", context_length=1024, kv_memory_bytes=512 << 20)
    texts = []
    for device in ("cpu", "cuda"):
        engine = Engine.load(Path(path), replace(config, device=device))
        prompt = engine.template.render([{"role": "user", "content": "What is a lighthouse for?"}])
        texts.append(engine.submit(prompt.ids, replace(GREEDY, max_tokens=40, ignore_eos=False)).result().text)
        engine.close()
    assert texts[0] == texts[1]
    assert "light" in texts[0].lower()
