"""What the engine is given for a reply: the turns that fit, ids it knows, sampling values."""

from __future__ import annotations

from pathlib import Path

from chatting import ended, run, serving
from fake_engine import FakeEngine

from octavo.app.chat.types import (
    Append,
    Ended,
    Notice,
)


def test_the_next_prompt_begins_with_the_ids_of_the_last(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (service, engine):
            chat = service.create_chat("Be brief.")
            await service.send(chat.id, "one")
            reply = await ended(service, chat.id)
            await service.send(chat.id, "two")
            second = await ended(service, chat.id)
            first_ids = (*engine.submitted[0][0], *reply.token_ids)
            assert engine.submitted[1][0][: len(first_ids)] == first_ids
            assert second.stats is not None
            assert second.stats.cached_tokens > len(first_ids) - 16
            assert service.store.sequence(second.id) == (*engine.submitted[1][0], *second.token_ids)

    run(test)


def test_turns_left_out_are_said_before_the_reply(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, FakeEngine(lambda _: "ok", context_length=512)) as (service, engine):
            chat = service.create_chat("Keep this.")
            for number in range(6):
                await service.send(chat.id, f"turn {number} " + "x" * 80)
                await ended(service, chat.id)
            events = service.subscribe(chat.id)
            await service.send(chat.id, "newest")
            seen = []
            async for event in events:
                seen.append(event)
                if isinstance(event, Ended):
                    break
            notice = next(event for event in seen if isinstance(event, Notice))
            assert "left out" in notice.text
            assert "512" in notice.text
            first_text = next(i for i, event in enumerate(seen) if isinstance(event, Append))
            assert seen.index(notice) < first_text
            last = seen[-1]
            assert isinstance(last, Ended)
            assert last.message.stats is not None
            left_out = last.message.stats.left_out_turns
            assert left_out > 0
            assert str(left_out) in notice.text or left_out == 1
            assert "Keep this." in engine.prompts[-1]
            assert "newest" in engine.prompts[-1]
            assert "turn 0 " not in engine.prompts[-1]
            stored = service.get_chat(chat.id)
            assert stored is not None
            assert len(stored.messages) == 14  # nothing is lost from the chat itself

    run(test)


def test_a_message_over_the_window_fails_with_both_numbers_and_the_chat_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, FakeEngine(context_length=256)) as (service, engine):
            chat = service.create_chat()
            await service.send(chat.id, "z" * 600)
            last = await ended(service, chat.id)
            assert last.status == "failed"
            assert last.error is not None
            assert "256" in last.error
            assert "6" in last.error.replace("256", "")
            assert engine.submitted == []
            await service.send(chat.id, "short")
            assert (await ended(service, chat.id)).content == "You said: short"

    run(test)


def test_sampling_values_come_from_chat_then_settings_then_model_then_ours(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine(generation_defaults={"top_k": 20, "temperature": 0.3, "top_p": 0.5})
        async with serving(tmp_path, engine, sampling__temperature=0.4) as (service, _):
            chat = service.create_chat()
            service.set_sampling(chat.id, {"min_p": 0.1})
            await service.send(chat.id, "x")
            await ended(service, chat.id)
            params = engine.submitted[-1][1]
            assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.4, 0.5, 20, 0.1)
            service.set_sampling(chat.id, {"temperature": 0.9})
            await service.send(chat.id, "x")
            await ended(service, chat.id)
            assert engine.submitted[-1][1].temperature == 0.9
            assert engine.submitted[-1][1].min_p == 0.0
        async with serving(tmp_path, other := FakeEngine()) as (service, _):
            chat = service.create_chat()
            await service.send(chat.id, "x")
            await ended(service, chat.id)
            assert (other.submitted[-1][1].temperature, other.submitted[-1][1].top_p) == (0.7, 0.95)

    run(test)


STRICT = (
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_template_that_wants_strict_turns_never_refuses_a_chat(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine(template=STRICT)
        async with serving(tmp_path, engine) as (service, _):
            chat = service.create_chat("Be brief.")
            engine.hold()
            await service.send(chat.id, "stopped before a word")
            service.stop(chat.id)
            await ended(service, chat.id)
            engine.release()
            await service.send(chat.id, "second")
            last = await ended(service, chat.id)
            assert last.error is None
            prompt = engine.prompts[-1]
            assert all(text in prompt for text in ("Be brief.", "stopped before a word", "second"))
            assert prompt.count("<|im_start|>user") == 1

    run(test)
