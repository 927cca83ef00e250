"""A reply that is stopped, by whom or what ever, keeps what it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chatting import ended, run, serving, some_text
from fake_engine import FakeEngine, endless

from octavo.app.chat.cuts import SENTENCES, Cut
from octavo.app.chat.store import ChatStore
from octavo.app.chat.types import (
    Append,
)


def test_stop_keeps_what_is_there_and_frees_the_engine(tmp_path: Path) -> None:
    async def test() -> None:
        engine = endless()
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat()
            events = service.subscribe(chat.id)
            await service.send(chat.id, "go")
            async for event in events:
                if isinstance(event, Append):
                    break
            assert service.stop(chat.id)
            last = await asyncio.wait_for(ended(service, chat.id), 60)
            assert last.status == "stopped"
            assert last.error is None  # it was asked for
            assert last.content
            assert ("word " * 20_000).startswith(last.content)
            assert len(last.content) < 100_000
            assert last.stats is not None
            assert last.stats.reason == "aborted"
            assert engine.is_idle
            assert not service.stop(chat.id)
            await service.send(chat.id, "hi")
            assert service.stop(chat.id)
            await ended(service, chat.id)

    run(test)


def test_a_reply_whose_engine_is_too_slow_to_end_it_keeps_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.app.chat.reply.ABORT_GRACE_S", 0.05)

    async def test() -> None:
        engine = endless()
        monkeypatch.setattr(engine, "abort", lambda request_id: None)  # as in the midst of a long step
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "go")
            await some_text(service, chat.id)
            service.stop(chat.id)
            last = await asyncio.wait_for(ended(service, chat.id), 60)
            assert last.status == "stopped"
            assert last.stats is not None
            assert (last.stats.reason, last.stats.completion_tokens) == ("aborted", len(last.content))
            assert last.stats.prompt_tokens == len(engine.submitted[0][0])
            assert last.stats.decode_tok_s > 0
            assert last.stats.first_token_s > 0

    run(test)


def test_stop_before_the_first_token_works_too(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine()
        engine.hold()
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "go")
            while engine.is_idle:
                await asyncio.sleep(0.005)
            service.stop(chat.id)
            last = await asyncio.wait_for(ended(service, chat.id), 60)
            assert (last.status, last.content) == ("stopped", "")
            assert engine.is_idle

    run(test)


def test_partial_text_is_on_disk_while_the_reply_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.app.chat.reply.SAVE_EVERY_S", 0.05)

    async def test() -> None:
        engine = endless()
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat()
            reply = await service.send(chat.id, "go")
            await some_text(service, chat.id)
            engine.hold()  # nothing further comes: what is there must be saved all the same
            other = ChatStore(tmp_path / "chats.sqlite3")

            def on_disk() -> str:
                stored, running = other.get_message(reply.id), service.running(chat.id)
                assert stored is not None
                assert running is not None
                assert stored.status == "streaming"
                return stored.content if stored.content == running.content else ""

            while not on_disk():
                await asyncio.sleep(0.01)
            assert on_disk().startswith("word ")
            other.close()

    run(test)


def test_closing_keeps_what_running_replies_have(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, endless()) as (service, _):
            chat = service.create_chat()
            reply = await service.send(chat.id, "go")
            await some_text(service, chat.id)
        store = ChatStore(tmp_path / "chats.sqlite3")
        stored = store.get_message(reply.id)
        assert stored is not None
        assert stored.status == "stopped"
        assert (stored.error_code, stored.error) == ("closed", SENTENCES["closed"])
        assert stored.content.startswith("word ")

    run(test)


def test_a_restart_closes_what_was_left_open(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite3")
    chat = store.create_chat()
    turn = store.add_message(chat.id, "user", "x")
    store.add_message(chat.id, "assistant", "", parent_id=turn.id, status="streaming")
    store.close()

    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            stored = service.get_chat(chat.id)
            assert stored is not None
            assert stored.messages[-1].status == "stopped"
            await service.send(chat.id, "again")
            assert (await ended(service, chat.id)).content == "You said: again"

    run(test)


@pytest.mark.parametrize("cut", ["interrupted", "gpu_lost"])
def test_what_a_dead_process_left_says_what_cut_it_off_until_it_is_continued(tmp_path: Path, cut: Cut) -> None:
    async def test() -> None:
        async with serving(tmp_path, FakeEngine(lambda _: "more")) as (service, _):
            store = service.store
            chat = service.create_chat()
            await service.send(chat.id, "go")
            last = await ended(service, chat.id)
            store.reopen_reply(last.id)  # as a process leaves it that dies
            await service.start(cut)
            stored = store.get_message(last.id)
            assert stored is not None
            assert (stored.status, stored.error_code, stored.error) == ("stopped", cut, SENTENCES[cut])
            await service.continue_reply(chat.id)
            last = await ended(service, chat.id)
            assert (last.status, last.error, last.error_code) == ("complete", None, None)

    run(test)
