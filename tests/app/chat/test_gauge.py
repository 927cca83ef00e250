"""What the gauge says before a message is sent is what then happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine

from octavo.app.chat.context import fit
from octavo.app.chat.gauge import ContextGauge, count_tokens
from octavo.app.chat.types import Attachment, Message
from octavo.engine.errors import ContextOverflowError
from octavo.engine.text.template import RenderedPrompt

WINDOW = 1024


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine(context_length=WINDOW)
    yield engine
    engine.close()


def chat(count: int, size: int = 100, system: str = "Be kind.") -> list[Message]:
    turns = [Message("s", "c", "system", system)] if system else []
    for number in range(count):
        turns.append(Message(f"q{number}", "c", "user", f"{number:03}" + "x" * size))
        turns.append(Message(f"a{number}", "c", "assistant", f"{number:03}" + "y" * size))
    return turns


@pytest.mark.parametrize("system", ["", "Be kind."])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_it_says_what_the_prompt_will_have(engine: FakeEngine, count: int, system: str) -> None:
    turns = chat(count, system=system)
    draft = "What now?\n\nTell me."
    files = (Attachment("a.txt", "text/plain", 0, "some text"),)
    reading = ContextGauge().measure(engine, turns, draft, attachments=files)
    sent = [*turns, Message("new", "c", "user", draft, attachments=files)]
    fitted = fit(engine.template, sent, window=WINDOW)
    assert reading.left_out == fitted.left_out_turns == 0
    assert reading.limit == WINDOW
    assert reading.used == reading.before + reading.draft
    assert reading.used == len(fitted.rendered.ids)


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 10, 14])
def test_it_says_how_many_turns_will_be_left_out(engine: FakeEngine, count: int) -> None:
    turns = chat(count)
    sent = [*turns, Message("new", "c", "user", "x" * 200)]
    reading = ContextGauge().measure(engine, turns, "x" * 200)
    fitted = fit(engine.template, sent, window=WINDOW)
    assert (reading.left_out, reading.too_long) == (fitted.left_out_turns, False)
    assert abs(reading.used - len(fitted.rendered.ids)) <= 1


def test_it_knows_a_message_that_cannot_be_sent_at_all(engine: FakeEngine) -> None:
    turns = chat(2)
    reading = ContextGauge().measure(engine, turns, "z" * WINDOW)
    assert reading.too_long
    with pytest.raises(ContextOverflowError):
        fit(engine.template, [*turns, Message("new", "c", "user", "z" * WINDOW)], window=WINDOW)


def test_room_that_a_chat_reserves_for_its_replies_is_kept(engine: FakeEngine) -> None:
    turns = chat(4, size=98)
    gauge = ContextGauge()
    assert gauge.measure(engine, turns, "hi", max_tokens=1).left_out == 0
    assert gauge.measure(engine, turns, "hi").left_out > 0


def test_a_keystroke_does_not_measure_the_chat_again(engine: FakeEngine) -> None:
    gauge, turns = ContextGauge(), chat(40)
    first = gauge.measure(engine, turns, "")
    rendered: list[object] = []
    render = engine.template.render

    def note(messages: list[object]) -> RenderedPrompt:
        if len(messages) > 2:  # more than an empty turn after the system text
            rendered.append(messages)
        return render(messages)

    engine.template.render = note  # type: ignore[assignment]
    assert gauge.measure(engine, turns, "a").before == first.before
    assert rendered == []
    gauge.measure(engine, [*turns, Message("later", "c", "user", "one more")], "a")
    assert len(rendered) == 1
    other = FakeEngine(context_length=WINDOW)
    try:
        gauge.measure(other, turns, "a")
        assert len(rendered) == 1
        gauge.measure(engine, turns, "a")  # the first one's measures were another model's
        assert len(rendered) == 2
    finally:
        other.close()


def test_a_turn_that_goes_or_changes_in_the_middle_is_counted(engine: FakeEngine) -> None:
    gauge, turns = ContextGauge(), chat(3)
    other = [*turns[:2], Message("a0, edited", "c", "assistant", "short"), *turns[3:]]
    for now in (turns, other, turns[:1] + turns[3:], turns):
        assert gauge.measure(engine, now, "x") == ContextGauge().measure(engine, now, "x")
    assert gauge.measure(engine, other, "x").before < gauge.measure(engine, turns, "x").before


def test_tokens_are_counted_in_pieces_and_none_is_lost(engine: FakeEngine) -> None:
    for text in ("", "word " * 3000, "\n" * 5000, "x" * 9001, "你好" * 2500, "a\n\nb"):
        assert count_tokens(engine.tokenizer, text) == len(text.encode())


def test_of_a_long_draft_that_grows_only_the_end_is_counted_anew(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge, draft = ContextGauge(), "some words of a long draft " * 4000
    gauge.measure(engine, [], draft)
    counted: list[str] = []
    known = engine.tokenizer._run_cache
    put = known.put

    def remember(text: str, ids: list[int]) -> None:
        counted.append(text)
        put(text, ids)

    monkeypatch.setattr(known, "put", remember)
    gauge.measure(engine, [], draft + "!")
    assert counted[-1].endswith("!")
    assert sum(map(len, counted)) < len(draft) / 20
