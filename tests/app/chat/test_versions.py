"""Every turn can have versions; what is not shown is kept and can be turned back to."""

from __future__ import annotations

from pathlib import Path

import pytest
from chatting import ended, run, serving, some_text
from fake_engine import FakeEngine

from octavo.app.chat.errors import ChatError, UnknownChatError
from octavo.app.chat.service import ChatService
from octavo.app.chat.types import Shown


def test_regenerate_replaces_what_is_shown_and_reuses_the_prompt(tmp_path: Path) -> None:
    async def test() -> None:
        answers = iter(["first", "second"])
        async with serving(tmp_path, FakeEngine(lambda _: next(answers))) as (service, engine):
            chat = service.create_chat()
            await service.send(chat.id, "question")
            await ended(service, chat.id)
            await service.regenerate(chat.id)
            last = await ended(service, chat.id)
            assert last.content == "second"
            stored = service.get_chat(chat.id)
            assert stored is not None
            assert [m.content for m in stored.messages] == ["question", "second"]
            assert engine.submitted[0][0] == engine.submitted[1][0]

    run(test)


def test_regenerate_needs_a_turn_to_reply_to(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, _):
            with pytest.raises(ChatError, match="nothing to reply to"):
                await service.regenerate(service.create_chat("system text").id)
            with pytest.raises(UnknownChatError):
                await service.regenerate("no-such-chat")

    run(test)


def texts(service: ChatService, chat_id: str) -> list[str]:
    chat = service.get_chat(chat_id)
    assert chat is not None
    return [f"{m.content} {m.version}/{m.versions}" for m in chat.messages]


def counting() -> FakeEngine:
    """Replies with a number that rises."""
    numbers = iter(range(1, 100))
    return FakeEngine(lambda _: f"reply {next(numbers)}")


def test_an_edited_message_begins_another_branch_and_the_first_stays(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, counting()) as (service, _):
            chat = service.create_chat()
            for text in ("first", "second"):
                await service.send(chat.id, text)
                await ended(service, chat.id)
            before = service.get_chat(chat.id)
            assert before is not None
            await service.send(chat.id, "first, edited", beside=before.messages[0].id)
            await ended(service, chat.id)
            assert texts(service, chat.id) == ["first, edited 2/2", "reply 3 1/1"]
            service.show_version(chat.id, service.get_chat(chat.id).messages[0].id, -1)  # type: ignore[union-attr]
            assert texts(service, chat.id) == ["first 1/2", "reply 1 1/1", "second 1/1", "reply 2 1/1"]
            assert service.get_chat(chat.id).title == "first"  # type: ignore[union-attr]

    run(test)


def test_an_earlier_reply_can_be_retried_and_what_followed_it_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, counting()) as (service, engine):
            chat = service.create_chat()
            for text in ("first", "second"):
                await service.send(chat.id, text)
                await ended(service, chat.id)
            reply = service.get_chat(chat.id).messages[1]  # type: ignore[union-attr]
            again = await service.regenerate(chat.id, reply.id)
            assert (again.version, again.versions) == (2, 2)
            await ended(service, chat.id)
            assert texts(service, chat.id) == ["first 1/1", "reply 3 2/2"]
            assert "second" not in engine.prompts[-1]
            service.show_version(chat.id, reply.id)
            assert texts(service, chat.id) == ["first 1/1", "reply 1 1/2", "second 1/1", "reply 2 1/1"]
            service.show_version(chat.id, reply.id, -1)
            assert texts(service, chat.id)[1] == "reply 1 1/2"

    run(test)


def test_turning_away_from_a_running_reply_loses_none_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        text = "word " * 40
        async with serving(tmp_path, FakeEngine(lambda _: text, token_s=0.001)) as (service, engine):
            chat = service.create_chat()
            await service.send(chat.id, "go")
            await ended(service, chat.id)
            engine.hold(after=20)
            running = await service.regenerate(chat.id)
            await some_text(service, chat.id)
            service.show_version(chat.id, running.id, -1)
            engine.release()
            shown = await ended(service, chat.id)
            assert (shown.version, shown.status) == (1, "complete")
            service.show_version(chat.id, running.id)
            last = service.get_chat(chat.id).messages[-1]  # type: ignore[union-attr]
            assert (last.content, last.version, last.status) == (text, 2, "complete")

    run(test)


@pytest.mark.parametrize("end", ["", " ", "\n", "."])
def test_a_reply_is_continued_exactly_after_its_text(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        replies = iter([f"The keeper{end}", "slept.", "again"])
        async with serving(tmp_path, FakeEngine(lambda _: next(replies))) as (service, engine):
            chat = service.create_chat()
            await service.send(chat.id, "a story")
            first = await ended(service, chat.id)
            resumed = await service.continue_reply(chat.id)
            assert resumed.id == first.id
            last = await ended(service, chat.id)
            assert engine.prompts[-1].endswith(f"<|im_start|>assistant\nThe keeper{end}")
            assert (last.content, last.status) == (f"The keeper{end}slept.", "complete")
            assert first.stats is not None
            assert last.stats is not None
            assert last.stats.completion_tokens == first.stats.completion_tokens + len("slept.") + 1  # with its end
            assert last.stats.prompt_tokens == first.stats.prompt_tokens
            assert texts(service, chat.id)[-1] == f"The keeper{end}slept. 1/1"
            await service.send(chat.id, "more")
            await ended(service, chat.id)
            assert f"The keeper{end}slept.<|im_end|>" in engine.prompts[-1]

    run(test)


def test_ids_of_a_continued_reply_are_those_the_engine_saw(tmp_path: Path) -> None:
    async def test() -> None:
        replies = iter(["one", "first part ", "second part", "done"])
        async with serving(tmp_path, FakeEngine(lambda _: next(replies))) as (service, engine):
            chat = service.create_chat()
            for text in ("a", "b"):
                await service.send(chat.id, text)
                await ended(service, chat.id)
            await service.continue_reply(chat.id)
            last = await ended(service, chat.id)
            prompt, _ = engine.submitted[-1]
            assert service.store.sequence(last.id) == (*prompt, *last.token_ids)
            await service.send(chat.id, "c")
            await ended(service, chat.id)
            assert engine.submitted[-1][0][: len(prompt)] == prompt

    run(test)


def test_a_continuation_that_fails_or_is_stopped_keeps_the_text(tmp_path: Path) -> None:
    async def test() -> None:
        def script(prompt: str) -> str:
            if "assistant\n" in prompt and not prompt.endswith("assistant\n"):
                raise RuntimeError("no memory")
            return "The keeper"

        async with serving(tmp_path, FakeEngine(script)) as (service, engine):
            chat = service.create_chat()
            await service.send(chat.id, "a story")
            await ended(service, chat.id)
            await service.continue_reply(chat.id)
            last = await ended(service, chat.id)
            assert (last.status, last.content) == ("failed", "The keeper")
            engine.hold()
            await service.continue_reply(chat.id)
            service.stop(chat.id)
            last = await ended(service, chat.id)
            assert (last.status, last.content) == ("stopped", "The keeper")
            stored = service.store.get_message(last.id)
            assert stored is not None
            assert stored.content == "The keeper"

    run(test)


def test_a_reply_can_be_put_right_by_hand(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, counting()) as (service, engine):
            chat = service.create_chat()
            await service.send(chat.id, "hello")
            reply = await ended(service, chat.id)
            await service.edit_reply(chat.id, reply.id, "as it should be")
            assert texts(service, chat.id) == ["hello 1/1", "as it should be 2/2"]
            await service.send(chat.id, "and then")
            await ended(service, chat.id)
            assert "as it should be<|im_end|>" in engine.prompts[-1]
            with pytest.raises(UnknownChatError):
                await service.edit_reply(chat.id, service.get_chat(chat.id).messages[0].id, "x")  # type: ignore[union-attr]

    run(test)


def test_a_branch_is_a_chat_of_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, counting()) as (service, engine):
            chat = service.create_chat("Be brief.")
            for text in ("first", "second"):
                await service.send(chat.id, text)
                await ended(service, chat.id)
            messages = service.get_chat(chat.id).messages  # type: ignore[union-attr]
            copy = service.branch_chat(chat.id, messages[1].id)
            assert texts(service, copy.id) == ["first 1/1", "reply 1 1/1"]
            assert service.get_chat(copy.id).title == "first (2)"  # type: ignore[union-attr]
            assert service.branch_chat(chat.id, messages[1].id).title == "first (3)"  # no two are called alike
            own = service.get_chat(copy.id).messages  # type: ignore[union-attr]
            assert service.branch_chat(copy.id, own[1].id).title == "first (4)"
            await service.send(copy.id, "third")
            await ended(service, copy.id)
            assert "Be brief." in engine.prompts[-1]
            first = service.store.sequence(messages[1].id)
            assert engine.submitted[-1][0][: len(first)] == first  # what was computed is used again
            assert len(texts(service, chat.id)) == 4
            with pytest.raises(UnknownChatError):
                service.branch_chat(chat.id, "unknown")

    run(test)


def test_who_watches_is_shown_the_other_version(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, counting()) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "hello")
            first = await ended(service, chat.id)
            await service.regenerate(chat.id)
            await ended(service, chat.id)
            events = service.subscribe(chat.id)
            service.show_version(chat.id, first.id)
            event = await anext(events)
            assert isinstance(event, Shown)
            assert event.messages[-1].content == "reply 1"

    run(test)
