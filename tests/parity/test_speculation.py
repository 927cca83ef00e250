"""Speculation on real models: whoever guesses, every reply is the one that plain decoding gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.model.compiled import Entry
from octavo.engine.request import SamplingParams

SMALL = {
    "vocab_size": 101,
    "hidden_size": 96,  # sizes that the CPU's compiled step takes
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": None,
}
BASE = EngineConfig(device="cpu", dtype="float32", context_length=160, page_size=4, kv_memory_bytes=8 << 20)
NAMES = [f"w{i}" for i in range(101)]


def save(path: Path, names: list[str], seed: int, **changes: Any) -> Path:
    """A random llama with a tokenizer of those words."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**{**SMALL, "vocab_size": len(names), **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(path)
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert Entry.of(torch.float32).wait() or find_spec("numba") is None
    root = tmp_path_factory.mktemp("models")
    save(root / "target", NAMES, 0)
    save(root / "twin", NAMES, 0)
    save(root / "stranger", NAMES, 7, num_hidden_layers=2)
    save(root / "wider", [*NAMES, "extra1", "extra2", "extra3"], 7)
    save(root / "narrow", NAMES, 0, max_position_embeddings=48)
    save(root / "foreign", [*NAMES[:60], "other", *NAMES[61:]], 3)
    return root


@pytest.fixture
def make(folder: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def engine(mode: str, draft: str | None = None, **changes: Any) -> Engine:
        path = None if draft is None else str(folder / draft)
        config = replace(BASE, speculation=mode, draft_model=path, draft_tokens=5, **changes)
        made.append(Engine.load(folder / "target", config))
        return made[-1]

    yield engine
    for each in made:
        each.close()


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    made = [[rng.randrange(3, 100) for _ in range(rng.choice([1, 4, 17, 40]))] for _ in range(9)]
    return [*made, made[2] * 3, made[3] + made[3]]


def replies(engine: Engine, params: SamplingParams) -> list[Any]:
    handles = []
    for index, prompt in enumerate(prompts()):
        wanted = replace(params, seed=index, max_tokens=(60, 7, 33)[index % 3])
        handles.append(engine.submit(prompt, wanted))
        if index == 4:
            engine.submit(prompt, wanted).abort()
    return [handle.result() for handle in handles]


PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=0.9, top_k=40, top_p=0.95),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, logit_bias=((9, 2.0),)
    ),
    "logprobs": SamplingParams(temperature=0.0, logprobs=3),
}


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, list[Any]]:
    """What is said without speculation."""
    engine = Engine.load(folder / "target", BASE)
    said = {name: replies(engine, params) for name, params in PARAMS.items()}
    engine.close()
    return said


@pytest.mark.parametrize(
    ("mode", "draft"), [("ngram", None), ("draft", "twin"), ("draft", "stranger"), ("self", None), ("auto", "twin")]
)
def test_every_drafter_leaves_text_logprobs_and_usage_as_they_are(
    mode: str, draft: str | None, make: Callable[..., Engine], plain: dict[str, list[Any]]
) -> None:
    engine = make(mode, draft)
    pairs = [pair for name, params in PARAMS.items() for pair in zip(plain[name], replies(engine, params), strict=True)]
    assert engine.status().counters["draft_tokens"] > 0
    for a, b in pairs:
        assert a.token_ids == b.token_ids
        assert a.text == b.text
        assert a.finished.reason == b.finished.reason
        assert a.finished.usage.completion_tokens == b.finished.usage.completion_tokens
        assert [entry.token_id for entry in a.logprobs] == [entry.token_id for entry in b.logprobs]
        for left, right in zip(a.logprobs, b.logprobs, strict=True):
            assert abs(left.logprob - right.logprob) < 1e-3
            assert [token for token, _ in left.top] == [token for token, _ in right.top]


def test_a_twin_is_always_right_and_a_stranger_is_soon_left_alone(make: Callable[..., Engine]) -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=100)
    twin, stranger = make("draft", "twin"), make("draft", "stranger")
    right = twin.submit(prompts()[3], params).result().finished.usage
    assert right.accepted_tokens == right.draft_tokens > 50
    assert twin.status().counters["steps"] < 40
    wrong = stranger.submit(prompts()[3], replace(params, temperature=0.0)).result().finished.usage
    assert wrong.accepted_tokens < wrong.draft_tokens < 60


def test_a_draft_of_another_vocabulary_is_refused_by_its_first_id_and_the_engine_runs_without(
    make: Callable[..., Engine],
) -> None:
    engine = make("draft", "foreign")
    notice = next(notice for notice in engine.info.notices if "vocabulary" in notice)
    assert "token 60 is 'other' there and 'w60' in the model" in notice
    done = engine.submit(prompts()[3], SamplingParams(temperature=0.0, max_tokens=20)).result()
    assert len(done.token_ids) == 20
    assert done.finished.usage.draft_tokens == 0


def test_a_draft_with_more_tokens_at_the_end_works(make: Callable[..., Engine]) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=40)
    engine = make("draft", "wider")
    assert not engine.info.notices
    assert [r.token_ids for r in replies(engine, params)] == [r.token_ids for r in replies(make("off"), params)]
    assert engine.status().counters["draft_tokens"] > 0


def test_beyond_a_drafts_window_decoding_goes_on_without_it(make: Callable[..., Engine]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=110)
    plain = make("off").submit(prompts()[3], params).result()
    engine = make("draft", "narrow")
    done = engine.submit(prompts()[3], params).result()
    assert done.token_ids == plain.token_ids
    assert 0 < done.finished.usage.draft_tokens <= 48


def test_to_the_end_of_the_window_and_not_a_token_further(make: Callable[..., Engine]) -> None:
    params = SamplingParams(temperature=0.0)
    for mode, draft in (("draft", "twin"), ("self", None), ("ngram", None)):
        done = make(mode, draft).submit(prompts()[3], params).result()
        assert len(prompts()[3]) + len(done.token_ids) == 160
        assert done.finished.reason == "length"


def test_a_model_that_is_not_there_is_a_notice_and_no_failure(make: Callable[..., Engine]) -> None:
    for engine in (make("draft", "nothing-here"), make("draft", None)):
        assert any("one at a time" in notice for notice in engine.info.notices)
        assert len(engine.submit([5, 6], SamplingParams(max_tokens=3)).result().token_ids) == 3


def test_without_the_model_that_is_asked_second_copies_are_guessed_and_the_notice_says_so(
    make: Callable[..., Engine],
) -> None:
    engine = make("auto", "nothing-here")
    assert any(notice.startswith("Only copies are guessed ahead: ") for notice in engine.info.notices)
    params = SamplingParams(max_tokens=40, logit_bias=((7, 100.0),))
    assert engine.submit([7] * 8, params).result().finished.usage.draft_tokens > 0
