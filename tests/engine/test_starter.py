"""The real starter model through the whole engine, in float32 so that texts can be compared to the letter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import Delta, PrefillProgress, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=18)
QUESTIONS = [
    "What is a lighthouse?",
    "Name a colour.",
    "What is a lighthouse for, and who looks after it?",
    "Say hello.",
]
TEXT = "The keeper walked up the stairs and lit the lamp before the fog came in from the sea. "


@pytest.fixture(scope="module")
def engine(starter_path: Path) -> Iterator[Engine]:
    made = Engine.load(
        starter_path, EngineConfig(device="cpu", dtype="float32", context_length=1280, kv_memory_bytes=240 << 20)
    )
    yield made
    made.close()


def ask(engine: Engine, text: str) -> tuple[int, ...]:
    return tuple(engine.template.render([{"role": "user", "content": text}]).ids)


def test_chats_at_once_say_what_each_says_alone(engine: Engine) -> None:
    alone = [engine.submit(ask(engine, text), GREEDY).result().text for text in QUESTIONS]
    assert "light" in alone[0].lower()
    handles = [engine.submit(ask(engine, text), GREEDY) for text in QUESTIONS * 2]
    assert [handle.result().text for handle in handles] == alone * 2


def test_a_seed_gives_the_same_reply_cold_and_warm_alone_and_in_company(engine: Engine) -> None:
    params = replace(GREEDY, temperature=0.8, top_p=0.95, seed=7)
    prompt = ask(engine, QUESTIONS[2])
    first = engine.submit(prompt, params).result()
    warm = engine.submit(prompt, params).result()
    company = [engine.submit(ask(engine, text), replace(params, seed=i)) for i, text in enumerate(QUESTIONS)]
    crowded = engine.submit(prompt, params).result()
    assert warm.finished.usage.cached_tokens > 0
    assert first.text == warm.text == crowded.text
    assert engine.submit(prompt, replace(params, seed=8)).result().text != first.text
    for handle in company:
        handle.result()


def test_the_second_turn_of_a_long_chat_computes_only_what_is_new(engine: Engine) -> None:
    history = [{"role": "user", "content": TEXT * 48}]
    first = engine.template.render(history)
    assert 850 < len(first.ids) < 1100
    handle = engine.submit(first.ids, GREEDY)
    progress = [event for event in handle if isinstance(event, PrefillProgress)]
    assert [event.done for event in progress] == sorted({event.done for event in progress})
    reply = engine.submit(first.ids, GREEDY).result()
    history += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "And then?"}]
    second = engine.template.render(history)
    before = engine.status().counters
    usage = engine.submit(second.ids, GREEDY).result().finished.usage
    new = len(second.ids) - len(first.ids) - len(reply.token_ids)
    assert usage.prompt_tokens - usage.cached_tokens <= new + 16
    assert engine.status().counters["failed"] == before["failed"]


def test_stop_strings_and_lengths_end_a_reply_cleanly(engine: Engine) -> None:
    prompt = ask(engine, "Repeat exactly: The lamp is lit. The fog is thick.")
    whole = engine.submit(prompt, replace(GREEDY, max_tokens=40)).result()
    word = whole.text.split()[3]
    stopped = engine.submit(prompt, replace(GREEDY, stop=(word,))).result()
    assert stopped.finished.reason == "stop"
    assert stopped.finished.stopped_by == word
    assert stopped.text == whole.text[: whole.text.index(word)]
    for count in (1, 2, 3, 4):
        short = engine.submit(prompt, replace(GREEDY, max_tokens=count)).result()
        assert short.finished.reason == "length"
        assert short.finished.usage.completion_tokens == count == len(short.token_ids)
        assert whole.text.startswith(short.text)


def test_logprobs_are_those_of_the_chosen_tokens(engine: Engine) -> None:
    prompt = ask(engine, QUESTIONS[1])
    done = engine.submit(prompt, replace(GREEDY, logprobs=3, max_tokens=6)).result()
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    for entry in done.logprobs:
        assert entry.top[0] == (entry.token_id, pytest.approx(entry.logprob, abs=1e-5))
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
    scored = engine.submit([*prompt, *done.token_ids], replace(GREEDY, max_tokens=0, prompt_logprobs=3)).result()
    entries = scored.finished.prompt_logprobs
    assert entries is not None
    assert entries[0] is None
    assert len(entries) == len(prompt) + len(done.token_ids)
    for entry, again in zip(done.logprobs, entries[len(prompt) :], strict=True):
        assert again is not None
        assert again.token_id == entry.token_id
        assert again.logprob == pytest.approx(entry.logprob, abs=2e-3)


def test_text_arrives_while_it_is_written(engine: Engine) -> None:
    deltas = [e for e in engine.submit(ask(engine, QUESTIONS[0]), GREEDY) if isinstance(e, Delta) and e.text]
    assert len(deltas) > 5


@pytest.mark.parametrize(
    ("quantization", "form"), [("int4", "Q4_1 as int4"), ("none", "Q4_1 as float32"), ("packed", "Q4_1")]
)
def test_what_runs_is_named_by_how_it_is_stored_and_what_it_runs_as(
    starter_path: Path, quantization: str, form: str
) -> None:
    settings = EngineConfig(device="cpu", dtype="float32", context_length=64, kv_memory_bytes=8 << 20)
    made = Engine.load(starter_path, replace(settings, quantization=quantization))
    try:
        assert made.info.format == form
    finally:
        made.close()
