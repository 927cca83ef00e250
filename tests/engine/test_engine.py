"""The engine's door: threads, asyncio, refusals and the end, on a fake device."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.engine.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.engine import Engine, EngineParts, ModelInfo
from octavo.engine.errors import ContextOverflowError, EngineClosedError, QueueFullError, RequestError
from octavo.engine.request import Delta, Event, Finished, SamplingParams
from octavo.engine.stream import EventStream, RequestHandle

Make = Callable[..., Any]
Greedy = Callable[[list[int], int], list[int]]
LONGEST_S = 120.0  # only what never comes takes so long


@pytest.fixture
def engine(harness: Make) -> Iterator[Engine]:
    """An engine of one fake model with a context of 128 tokens; `engine.gate` holds its steps back while cleared."""
    h = harness(cache="tree", chunk=16, max_running=1)
    gate = threading.Event()
    gate.set()
    launch = h.runner.launch

    def gated(plan: Any) -> Any:
        if not gate.wait(LONGEST_S):
            raise TimeoutError("a test left the gate closed")
        return launch(plan)

    h.runner.launch = gated
    info = ModelInfo("fake", "Fake", "none", "none", "CPU", 128, 97, 0, 0)
    config = EngineConfig(queue_limit=2)
    parts = EngineParts(lambda emit: EngineCore(h.core.scheduler, h.runner, emit), config, info, 4, 1)
    made = Engine(parts)
    made.gate = gate  # type: ignore[attr-defined]
    yield made
    gate.set()
    made.close()


def test_a_thread_reads_a_reply(engine: Engine, fake_greedy: Greedy) -> None:
    events = list(engine.submit([1, 2, 3], SamplingParams(max_tokens=9)))
    assert [t for e in events if isinstance(e, Delta) for t in e.token_ids] == fake_greedy([1, 2, 3], 9)
    assert isinstance(events[-1], Finished)


def test_asyncio_reads_many_replies_at_once(engine: Engine, fake_greedy: Greedy) -> None:
    async def read(prompt: list[int]) -> tuple[int, ...]:
        while True:
            try:
                handle = engine.submit(prompt, SamplingParams(max_tokens=20))
            except QueueFullError:
                await asyncio.sleep(0.005)
                continue
            return (await handle.aresult()).token_ids

    async def main() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(read([i, i + 1]) for i in range(12)))

    for index, tokens in enumerate(asyncio.run(main())):
        assert list(tokens) == fake_greedy([index, index + 1], 20)


def test_a_reply_without_limit_ends_at_the_window(engine: Engine) -> None:
    done = engine.submit([1] * 100, SamplingParams()).result()
    assert done.finished.reason == "length"
    assert len(done.token_ids) == 28


def test_a_prompt_of_the_whole_window_is_refused_with_both_numbers(engine: Engine) -> None:
    with pytest.raises(ContextOverflowError, match=r"128 tokens.*holds 128"):
        engine.submit([1] * 128)
    assert len(engine.submit([1] * 127).result().token_ids) == 1


@pytest.mark.parametrize(
    ("prompt", "params", "match"),
    [
        ([], SamplingParams(), "empty"),
        ([1, 97], SamplingParams(), "97 is outside"),
        ([-1], SamplingParams(), "-1 is outside"),
        ([1], SamplingParams(max_tokens=0), "max_tokens"),
    ],
)
def test_requests_that_cannot_run_are_refused_at_once(
    engine: Engine, prompt: list[int], params: SamplingParams, match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        engine.submit(prompt, params)


def test_one_request_over_the_queue_limit_is_refused_until_others_have_ended(engine: Engine) -> None:
    engine.gate.clear()  # type: ignore[attr-defined]
    running = engine.submit([1, 2], SamplingParams(max_tokens=50))
    waiting = [engine.submit([5, i], SamplingParams(max_tokens=2)) for i in range(2)]
    with pytest.raises(QueueFullError):
        engine.submit([6])
    engine.gate.set()  # type: ignore[attr-defined]
    for handle in (running, *waiting):
        assert handle.result().finished.reason == "length"
    assert engine.settle(LONGEST_S)
    assert engine.submit([6], SamplingParams(max_tokens=1)).result().finished.reason == "length"


def test_who_reads_of_an_end_may_ask_again_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[RequestHandle] = []
    push = EventStream.push

    def heard(stream: EventStream, event: Event) -> None:
        push(stream, event)
        if isinstance(event, Finished) and not again:
            again.append(engine.submit([6], SamplingParams(max_tokens=1)))

    monkeypatch.setattr(EventStream, "push", heard)
    engine.gate.clear()  # type: ignore[attr-defined]
    full = [engine.submit([5, i], SamplingParams(max_tokens=2)) for i in range(3)]
    engine.gate.set()  # type: ignore[attr-defined]
    for handle in full:
        assert handle.result().finished.reason == "length"
    assert again[0].result().finished.reason == "length"


def test_an_aborted_reply_keeps_what_it_has_and_leaves_nothing_behind(engine: Engine) -> None:
    engine.gate.clear()  # type: ignore[attr-defined]
    handle = engine.submit([1, 2, 3], SamplingParams(max_tokens=100))
    handle.abort()
    engine.gate.set()  # type: ignore[attr-defined]
    assert handle.result().finished.reason == "aborted"
    assert engine.settle(LONGEST_S)
    status = engine.status()
    assert status.pages["used"] == 0
    assert status.counters["aborted"] == 1
    assert status.requests == {"running": 0, "waiting": 0, "swapped": 0}


def test_the_thread_sleeps_when_nothing_is_to_do(engine: Engine) -> None:
    engine.submit([1], SamplingParams(max_tokens=3)).result()
    assert engine.settle(LONGEST_S)
    before = engine._last_step_s, engine._snapshot_s  # every round of its loop writes one of them
    time.sleep(0.3)
    assert (engine._last_step_s, engine._snapshot_s) == before


def test_closing_ends_what_runs_and_refuses_what_comes(engine: Engine) -> None:
    engine.gate.clear()  # type: ignore[attr-defined]
    handles = [engine.submit([1, i], SamplingParams(max_tokens=90)) for i in range(2)]
    closing = threading.Thread(target=engine.close)
    closing.start()
    while engine.status().state != "closed":
        time.sleep(0.001)
    engine.gate.set()  # type: ignore[attr-defined]
    closing.join()
    for handle in handles:
        assert handle.result().finished.reason == "error"
    with pytest.raises(EngineClosedError):
        engine.submit([1])
    assert engine.status().state == "closed"


def test_page_counts_add_up(engine: Engine) -> None:
    engine.submit(list(range(40)), SamplingParams(max_tokens=5)).result()
    assert engine.settle(LONGEST_S)
    pages = engine.status().pages
    assert pages["free"] + pages["cached"] + pages["used"] == pages["total"]
    assert pages["cached"] == 11
