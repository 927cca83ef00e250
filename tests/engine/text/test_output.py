"""Ids to certain text: characters, reasoning and stop strings in one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.text import OutputText, Piece, ReasoningFormat, Tokenizer

QUICK = settings(deadline=None, max_examples=150, derandomize=True)
THINK = ReasoningFormat("<think>", "</think>")


def pushed(output: OutputText, steps: list[list[int]]) -> Piece:
    text = reasoning = ""
    used = 0
    for step in steps:
        piece = output.push(step)
        text, reasoning, used = text + piece.text, reasoning + piece.reasoning, used + piece.used
        if piece.matched_stop is not None:
            return Piece(text, reasoning, piece.matched_stop, used)
    last = output.finish()
    return Piece(text + last.text, reasoning + last.reasoning, last.matched_stop, used)


@pytest.mark.parametrize("stop", ["T", "\n\nUser:"])
def test_a_stop_string_is_found_in_text_whatever_tokens_spell_it(byte_level: Tokenizer, stop: str) -> None:
    text = f"sure{stop} and more"
    usual = byte_level.encode(text)
    letters = [i for letter in text for i in byte_level.encode(letter)]
    assert usual != letters
    for ids in (usual, letters):
        for steps in ([ids], [[i] for i in ids]):
            piece = pushed(OutputText(byte_level, [], stops=[stop]), steps)
            assert (piece.text, piece.matched_stop) == ("sure", stop)
            completed = byte_level.decode(ids[: piece.used])
            assert stop in completed
            assert stop not in byte_level.decode(ids[: piece.used - 1])


def test_the_ids_after_a_stop_string_do_not_count(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, [], stops=["."])
    head, tail = byte_level.encode("Yes."), byte_level.encode(" No.")
    assert output.push([*head, *tail]) == Piece("Yes", "", ".", len(head))
    assert output.push(tail) == Piece("", "", ".", 0)
    assert output.finish() == Piece("", "", ".", 0)


def test_held_text_comes_with_the_end(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, [], stops=["###"])
    ids = byte_level.encode("a ##")
    assert output.push(ids) == Piece("a ", "", None, len(ids))
    assert output.finish() == Piece("##", "", None, 0)


def test_reasoning_is_split_from_the_answer_and_stop_strings_are_for_the_answer(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<think>\none. two\n</think>\n\nthree. four", allow_control=True)
    for steps in ([ids], [[i] for i in ids]):
        piece = pushed(OutputText(byte_level, [], stops=["."], reasoning=THINK), steps)
        assert (piece.text, piece.reasoning, piece.matched_stop) == ("three", "one. two", ".")


def test_reasoning_opened_by_the_prompt_starts_open(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("why</think>so", allow_control=True)
    piece = pushed(OutputText(byte_level, [], reasoning=THINK, reasoning_open=True), [ids])
    assert (piece.text, piece.reasoning) == ("so", "why")


def test_tags_that_are_special_tokens_are_seen_though_special_tokens_have_no_text(
    byte_level_hf: Callable[..., Any],
) -> None:
    tokenizer = Tokenizer(byte_level_hf(("[THINK]", "[/THINK]", "<|end|>")))
    ids = tokenizer.encode("[THINK]why[/THINK]so<|end|>", allow_control=True)
    tags = ReasoningFormat("[THINK]", "[/THINK]")
    piece = pushed(OutputText(tokenizer, [], reasoning=tags), [[i] for i in ids])
    assert (piece.text, piece.reasoning) == ("so", "why")


def test_channels_of_special_tokens_are_reasoning_and_answer(byte_level_hf: Callable[..., Any]) -> None:
    special = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>")
    template = (
        "{{ '<|start|>assistant<|channel|>analysis<|message|><|end|>' }}"
        "{{ '<|start|>assistant<|channel|>final<|message|>' }}"
    )
    tokenizer = Tokenizer(byte_level_hf(special), chat_template=template)
    from octavo.engine.text import detect_reasoning

    known = detect_reasoning(template, tokenizer)
    reply = "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>"
    ids = tokenizer.encode(reply, allow_control=True)
    piece = pushed(OutputText(tokenizer, [], reasoning=known), [[i] for i in ids])
    assert (piece.text, piece.reasoning) == ("so", "why")


def test_padded_ids_count_but_have_no_text(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, [], stops=["x"])
    assert output.push([byte_level.vocab_size + 5]) == Piece("", "", None, 1)


@QUICK
@given(
    ids=st.lists(st.integers(0, 620), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    stops=st.lists(st.sampled_from(["a", "th", "e ", "\n"]), max_size=2),
    thinks=st.booleans(),
    is_open=st.booleans(),
)
def test_how_many_tokens_a_step_brings_does_not_change_the_reply(
    byte_level: Tokenizer, ids: list[int], cuts: list[int], stops: list[str], thinks: bool, is_open: bool
) -> None:
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    steps = [ids[start:end] for start, end in itertools.pairwise(borders)]
    known = THINK if thinks else None

    def output() -> OutputText:
        return OutputText(byte_level, [], stops=stops, reasoning=known, reasoning_open=thinks and is_open)

    assert pushed(output(), steps) == pushed(output(), [[i] for i in ids])


def test_without_stops_and_reasoning_the_text_is_the_decoded_ids(starter: Tokenizer) -> None:
    ids = starter.encode("One 山 two 😀.\n")
    assert pushed(OutputText(starter, starter.encode("Say:")), [[i] for i in ids]).text == starter.decode(ids)
