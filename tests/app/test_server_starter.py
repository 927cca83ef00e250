"""The same with the real engine and the starter model: short replies, real tokens, real pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hosting import settings
from openai import OpenAI
from serving import running

from octavo.app.chat.context import fit
from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import Append, Ended, Message
from octavo.app.host import ModelHost
from octavo.app.server import create_app

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


@dataclass(frozen=True)
class Served:
    url: str
    host: ModelHost
    service: ChatService
    loop: asyncio.AbstractEventLoop

    def chat(self, *texts: str) -> list[Message]:
        """Sends the texts one after the other in a new chat; the replies."""
        return asyncio.run_coroutine_threadsafe(self._chat(texts), self.loop).result(120)

    async def _chat(self, texts: tuple[str, ...]) -> list[Message]:
        chat = self.service.create_chat("You are brief.")
        replies = []
        for text in texts:
            events = self.service.subscribe(chat.id)
            await self.service.send(chat.id, text)
            seen = ""
            async for event in events:
                if isinstance(event, Append):
                    seen += event.text
                elif isinstance(event, Ended):
                    assert seen == event.message.content
                    replies.append(event.message)
                    break
            events.close()
        return replies


@pytest.fixture(scope="module")
def served(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = settings(
        tmp_path_factory.mktemp("starter"),
        model__id=str(starter_path),
        model__context_length=512,
        engine__kv_memory="64 MiB",
        sampling__temperature=0,
        sampling__max_tokens=4,
    )
    host = ModelHost()
    app = create_app(config, host, ChatStore(None))
    host.load(config.values)
    assert host.wait(120) == "ready", host.error
    with running(app) as url:
        service = app.state.service
        yield Served(url, host, service, service._news._loop)


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
        yield client


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def used_pages(served: Served) -> int:
    return int(httpx.get(f"{served.url}/api/status", timeout=60).json()["pages"]["used"])


def test_streamed_and_whole_replies_are_the_same_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=12)  # type: ignore[arg-type]
    stream = client.chat.completions.create(
        model="default",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert "Paris" in text
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_prompt_is_scored_by_the_model(client: OpenAI) -> None:
    def score(text: str) -> float:
        reply = client.completions.create(model="default", prompt=text, max_tokens=0, echo=True, logprobs=1)
        logprobs = reply.choices[0].logprobs
        assert reply.choices[0].text == text
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert "".join(logprobs.tokens) == text
        values = logprobs.token_logprobs
        assert values is not None
        assert values[0] is None
        return sum(value for value in values if value is not None)

    assert score("The capital of France is Paris") > score("The capital of France is soup") + 2


def test_the_second_turn_of_a_chat_computes_only_what_is_new(served: Served) -> None:
    first, second = served.chat("Name the capital of France.", "And of Italy?")
    assert first.stats is not None
    assert second.stats is not None
    assert first.status == second.status == "complete"
    known = first.stats.prompt_tokens + first.stats.completion_tokens
    page = int(httpx.get(f"{served.url}/api/status", timeout=60).json()["pages"]["page_size"])
    assert second.stats.cached_tokens > known - 1 - page  # the last token of a reply was never computed
    ids = served.service.store.sequence(second.id)
    assert ids[:known] == served.service.store.sequence(first.id)
    assert len(ids) == second.stats.prompt_tokens + second.stats.completion_tokens


def test_a_reply_continued_in_pieces_is_the_reply_written_at_once(served: Served, client: OpenAI) -> None:
    (reply,) = served.chat("Tell a story about a lighthouse.")

    async def go_on() -> Message:
        events = served.service.subscribe(reply.chat_id)
        await served.service.continue_reply(reply.chat_id)
        async for event in events:
            if isinstance(event, Ended):
                return event.message
        raise AssertionError

    assert served.host.engine is not None
    assert served.host.engine.settle(60)
    before = served.host.engine.status().counters
    for _ in range(2):
        reply = asyncio.run_coroutine_threadsafe(go_on(), served.loop).result(120)
    assert served.host.engine.settle(60)
    after = served.host.engine.status().counters
    assert after["cached_prompt_tokens"] > before["cached_prompt_tokens"]  # what was said is not computed again
    assert reply.stats is not None
    assert reply.stats.completion_tokens == 12  # of all its parts
    turns = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "Tell a story about a lighthouse."},
    ]
    whole = client.chat.completions.create(model="default", messages=turns, max_tokens=12)  # type: ignore[arg-type]
    assert reply.content == whole.choices[0].message.content


def test_a_chat_longer_than_the_window_is_fitted_by_the_model_s_own_tokens(served: Served) -> None:
    assert served.host.engine is not None
    template = served.host.engine.template
    turns = [Message("s", "c", "system", "You are brief.")]
    for number in range(12):
        turns.append(Message(f"u{number}", "c", "user", f"Question {number}? " + "Apples and pears. " * 10))
        fitted = fit(template, turns, window=512)
        assert len(fitted.rendered.ids) <= 512 - 512 // 8
        assert f"Question {number}?" in fitted.rendered.text
        assert "You are brief." in fitted.rendered.text
        turns.append(Message(f"a{number}", "c", "assistant", f"Answer {number}. " + "Yes. " * 10))
    assert fitted.left_out_turns >= 5
    assert "Question 0?" not in fitted.rendered.text


def test_a_prompt_over_the_window_is_refused_and_the_next_is_answered(served: Served, client: OpenAI) -> None:
    answer = httpx.post(
        f"{served.url}/v1/chat/completions",
        json={"model": "default", "messages": [{"role": "user", "content": "word " * 600}]},
        timeout=60,
    )
    assert answer.status_code == 400
    assert "512" in answer.json()["error"]["message"]
    assert client.completions.create(model="default", prompt="Hello", max_tokens=1).choices[0].text


def test_a_closed_connection_frees_its_pages(served: Served) -> None:
    body = {"model": "default", "prompt": "Count: 1", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        wait_for(lambda: used_pages(served) > 0)
    wait_for(lambda: used_pages(served) == 0)
    status = httpx.get(f"{served.url}/api/status", timeout=60).json()
    assert status["requests"] == {"running": 0, "waiting": 0, "swapped": 0}
    assert status["pages"]["free"] + status["pages"]["cached"] == status["pages"]["total"]
