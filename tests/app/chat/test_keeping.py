"""Where chats are and for how long: temporary ones, deleted ones, the model they remember, and what is not kept."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from chatting import ended, run, serving
from fake_engine import FakeEngine

from octavo.app.chat import service as service_module
from octavo.app.chat.errors import ChatBusyError, OtherModelError, UnknownChatError
from octavo.app.chat.types import ChatChanged, ChatRemoved

SECRET = "zanzibarquokka"


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_temporary_chat_never_reaches_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            chat = service.create_chat(temporary=True)
            assert chat.temporary
            await service.send(chat.id, SECRET)
            last = await ended(service, chat.id)
            assert last.content == f"You said: {SECRET}"
            assert [(c.id, c.temporary, c.title) for c in service.list_chats()] == [(chat.id, True, SECRET)]
            assert [hit.chat_id for hit in service.search(SECRET)] == [chat.id]
            assert SECRET.encode() not in on_disk(tmp_path)
            branch = service.branch_chat(chat.id, last.id)
            assert branch.temporary
            assert SECRET.encode() not in on_disk(tmp_path)
        assert SECRET.encode() not in on_disk(tmp_path)
        async with serving(tmp_path) as (service, _):
            assert service.list_chats() == []

    run(test)


def test_a_temporary_chat_can_be_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, engine):
            chat = service.create_chat(temporary=True)
            await service.send(chat.id, "hello")
            first = await ended(service, chat.id)
            await service.regenerate(chat.id)
            await ended(service, chat.id)
            kept = service.keep_chat(chat.id)
            assert not kept.temporary
            assert [c.id for c in service.list_chats()] == [kept.id]
            assert kept.messages[-1].versions == 2
            assert service.get_chat(chat.id) is None
            await service.send(kept.id, "more")
            last = await ended(service, kept.id)
            assert last.content == "You said: more"
            assert first.content in engine.prompts[-1]
            with pytest.raises(UnknownChatError):
                service.keep_chat(chat.id)
        async with serving(tmp_path) as (service, _):
            assert [c.id for c in service.list_chats()] == [kept.id]

    run(test)


def test_a_running_temporary_chat_is_kept_when_it_has_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, engine):
            engine.hold()
            chat = service.create_chat(temporary=True)
            await service.send(chat.id, "hello")
            with pytest.raises(ChatBusyError):
                service.keep_chat(chat.id)
            engine.release()
            await ended(service, chat.id)
            service.keep_chat(chat.id)

    run(test)


def test_a_deleted_chat_can_be_brought_back_and_is_erased_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "UNDO_S", 0.15)

    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            chats = []
            for _ in range(2):
                chat = service.create_chat()
                await service.send(chat.id, SECRET)
                await ended(service, chat.id)
                chats.append(chat.id)
            events = service.subscribe_list()
            await anext(events)
            for chat_id in chats:
                assert service.delete_chat(chat_id)
            assert service.list_chats() == []
            assert service.restore_chat(chats[0])
            seen = [await anext(events) for _ in range(3)]
            assert [type(event) for event in seen] == [ChatRemoved, ChatRemoved, ChatChanged]
            while service.store._file._db.execute("SELECT count(*) FROM chats").fetchone()[0] > 1:
                await asyncio.sleep(0.02)
            assert not service.restore_chat(chats[1])
            assert service.delete_chat(chats[0])
        monkeypatch.setattr(service_module, "UNDO_S", 0.0)
        async with serving(tmp_path) as (service, _):
            while service.store._file._db.execute("SELECT count(*) FROM chats").fetchone()[0]:
                await asyncio.sleep(0.02)
        assert SECRET.encode() not in on_disk(tmp_path)  # overwritten, not only forgotten

    run(test)


def test_a_chat_asks_before_another_model_replies(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "hello")
            reply = await ended(service, chat.id)
            loaded = service.host.model_id
            assert service.list_chats()[0].model == loaded
            service.store.update_chat(chat.id, model="another/model")
            for action in (service.send(chat.id, "more"), service.regenerate(chat.id), service.continue_reply(chat.id)):
                with pytest.raises(OtherModelError, match="another/model"):
                    await action
            stored = service.get_chat(chat.id)
            assert stored is not None
            assert [m.id for m in stored.messages][-1] == reply.id  # nothing was stored
            service.use_model(chat.id)
            assert service.list_chats()[0].model == loaded
            await service.send(chat.id, "more")
            assert (await ended(service, chat.id)).status == "complete"

    run(test)


def test_a_thousand_replies_leave_nothing_behind_in_memory(tmp_path: Path) -> None:
    async def test() -> int:
        async with serving(tmp_path, FakeEngine(lambda _: "a word")) as (service, engine):
            chats = [service.create_chat().id for _ in range(10)]

            async def reply(chat_id: str) -> None:
                watching = service.subscribe(chat_id)
                await service.regenerate(chat_id)
                await ended(service, chat_id)
                await watching.aclose()

            async def rounds(count: int) -> int:
                for _ in range(count):
                    await asyncio.gather(*map(reply, chats))
                engine.forget()
                gc.collect()
                return len(gc.get_objects())

            for chat_id in chats:
                await service.send(chat_id, "hello")
                await ended(service, chat_id)
            before = await rounds(20)
            after = await rounds(80)
            assert len(service.store.versions(service.get_chat(chats[0]).messages[1].id)) == 101  # type: ignore[union-attr]
            return after - before

    assert run(test) < 400  # objects; a thousand replies that each left one would be 800 more
