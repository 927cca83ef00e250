"""Messages are kept and answered, or told why not, whatever the model is doing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from chatting import ended, run, serving, some_text
from fake_engine import FakeEngine, endless
from hosting import GatedLoads, settings

from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import (
    Ended,
    Progress,
)
from octavo.app.idle import rest_when_idle
from octavo.engine.errors import LoadError


def test_a_failing_request_ends_its_reply_alone(tmp_path: Path) -> None:
    async def test() -> None:
        def script(prompt: str) -> str:
            if "bad" in prompt:
                raise ValueError("The scores were not numbers.")
            return "fine"

        async with serving(tmp_path, FakeEngine(script)) as (service, _):
            good, bad = service.create_chat().id, service.create_chat().id
            await asyncio.gather(service.send(good, "good"), service.send(bad, "bad"))
            failed = await ended(service, bad)
            assert (failed.status, failed.error) == ("failed", "The scores were not numbers.")
            assert (await ended(service, good)).content == "fine"

    run(test)


def test_a_message_sent_while_the_model_loads_is_answered_when_it_is_ready(tmp_path: Path) -> None:
    async def test() -> None:
        loads = GatedLoads(FakeEngine)
        config = settings(tmp_path)
        host = loads.host()
        service = ChatService(ChatStore(None), host, config)
        await service.start()
        host.load(config.values)
        chat = service.create_chat()
        events = service.subscribe(chat.id)
        await service.send(chat.id, "early")
        waited = []
        async for event in events:
            if isinstance(event, Progress):
                waited.append(event)
                if event.state == "loading" and event.done > 0:
                    loads.open()
            if isinstance(event, Ended):
                break
        assert isinstance(event, Ended)
        assert event.message.content == "You said: early"
        assert any(progress.state == "loading" and progress.total == 1000 for progress in waited)
        assert any(progress.state == "reading" for progress in waited)
        await service.close()
        host.close()

    run(test)


def test_a_load_that_fails_ends_the_waiting_reply_with_its_reason(tmp_path: Path) -> None:
    async def test() -> None:
        loads = GatedLoads(FakeEngine)
        loads.failure = LoadError("model.safetensors is cut off.", remedy="Fetch it again.")
        config = settings(tmp_path)
        host = loads.host()
        service = ChatService(ChatStore(None), host, config)
        await service.start()
        host.load(config.values)
        chat = service.create_chat()
        await service.send(chat.id, "early")
        loads.open()
        last = await ended(service, chat.id)
        assert last.status == "failed"
        assert last.error is not None
        assert "model.safetensors is cut off. Fetch it again." in last.error
        loads.failure = None
        host.load(config.values)
        await service.regenerate(chat.id)
        assert (await ended(service, chat.id)).content == "You said: early"
        await service.close()
        host.close()

    run(test)


def test_without_a_model_the_message_is_kept_and_the_reply_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        config = settings(tmp_path)
        service = ChatService(ChatStore(None), GatedLoads(FakeEngine).host(), config)
        await service.start()
        chat = service.create_chat()
        await service.send(chat.id, "hello?")
        last = await ended(service, chat.id)
        assert last.status == "failed"
        assert last.error is not None
        assert "No model is loaded" in last.error
        await service.close()

    run(test)


def test_unloading_ends_running_replies_with_a_sentence(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, endless()) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "go")
            await some_text(service, chat.id)
            service.host.unload()
            last = await ended(service, chat.id)
            assert last.status == "failed"
            assert last.error_code == "model_gone"
            assert last.content.startswith("word")

    run(test)


def test_a_full_queue_makes_a_chat_wait_not_fail(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine(max_running=1, queue_limit=1)
        engine.hold()
        async with serving(tmp_path, engine) as (service, _):
            chats = [service.create_chat().id for _ in range(3)]
            places = [service.subscribe(chat) for chat in chats]
            for chat in chats:
                await service.send(chat, "hi")
                while not engine.submitted:  # the others find the only place of the queue taken
                    await asyncio.sleep(0.005)
            async for event in places[2]:
                if isinstance(event, Progress):
                    assert event.state == "waiting"
                    assert event.place >= 1
                    break
            engine.release()
            replies = [await ended(service, chat) for chat in chats]
            assert [reply.status for reply in replies] == ["complete"] * 3

    run(test)


def test_a_model_that_rests_is_woken_by_the_next_message(tmp_path: Path) -> None:
    async def test() -> None:
        made: list[FakeEngine] = []

        def make() -> FakeEngine:
            made.append(FakeEngine())
            return made[-1]

        loads = GatedLoads(make)
        loads.open()
        config = settings(tmp_path)
        host = loads.host()
        host.load(config.values)
        host.wait(240)
        service = ChatService(ChatStore(None), host, config)
        await service.start()
        watching = asyncio.create_task(rest_when_idle(host, lambda: 0.1, check_every_s=0.02))
        while not host.is_resting:
            await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.to_thread(host.wait, 60)
        assert host.state == "empty"
        assert made[0].status().state == "closed"
        chat = service.create_chat()
        await service.send(chat.id, "hello")
        assert (await ended(service, chat.id)).content == "You said: hello"
        assert len(made) == 2
        await service.close()
        host.close()

    run(test)


def test_a_model_in_use_does_not_rest(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, engine):
            engine.hold()
            chat = service.create_chat()
            await service.send(chat.id, "go")
            while engine.is_idle:
                await asyncio.sleep(0.005)
            watching = asyncio.create_task(rest_when_idle(service.host, lambda: 0.01, check_every_s=0.01))
            await asyncio.sleep(0.2)
            assert service.host.state == "ready"
            watching.cancel()
            engine.release()
            assert (await ended(service, chat.id)).status == "complete"
            never = asyncio.create_task(rest_when_idle(service.host, lambda: 0, check_every_s=0.01))
            await asyncio.sleep(0.2)
            assert service.host.state == "ready"
            never.cancel()

    run(test)


def test_a_model_that_a_message_is_being_prepared_for_does_not_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, checks = 0.0, 0

    def limit_s() -> float:
        nonlocal checks
        checks += 1
        return 10.0

    monkeypatch.setattr("octavo.app.idle.time", SimpleNamespace(monotonic=lambda: now_s))

    async def test() -> None:
        nonlocal now_s
        async with serving(tmp_path) as (service, _):
            watching = asyncio.create_task(rest_when_idle(service.host, limit_s, check_every_s=0.001))
            for _ in range(3):
                now_s += 9.0
                service.host.wake()  # as the engine is asked for, whose queue nothing reaches yet
                seen = checks
                while checks < seen + 3:
                    await asyncio.sleep(0.001)
                assert service.host.state == "ready"
            now_s += 11.0
            while service.host.state == "ready":
                await asyncio.sleep(0.001)
            watching.cancel()

    run(test)
