"""Stop strings in streamed text, whatever the cuts; end tokens gathered from all the places that name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.text import StopChecker, Tokenizer, stop_token_ids

QUICK = settings(deadline=None, max_examples=300, derandomize=True)


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    checker = StopChecker(stops)
    said = ""
    for piece in pieces:
        emitted, matched = checker.push(piece)
        said += emitted
        if matched is not None:
            return said, matched
    return said + checker.flush(), None


def first_match(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition, letter by letter: the match that is complete first, the longest of those ending together."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@QUICK
@given(
    stops=st.lists(st.text("ab\n", max_size=4), max_size=4),
    pieces=st.lists(st.text("ab\n", max_size=5), max_size=12),
)
def test_the_first_match_ends_the_text_whatever_the_cuts(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == first_match(stops, "".join(pieces))


@pytest.mark.parametrize("pieces", [["Sure.\n", "\nUs", "er: hi"], ["Sure.\n\nUser: hi"], list("Sure.\n\nUser: hi")])
def test_a_stop_string_is_found_across_borders_and_nothing_after_it_is_emitted(pieces: list[str]) -> None:
    assert run(["\n\nUser:"], pieces) == ("Sure.", "\n\nUser:")


def test_text_is_held_back_only_while_a_stop_string_is_possible() -> None:
    checker = StopChecker(["\n\nUser:"])
    assert checker.push("Sure.\n") == ("Sure.", None)
    assert checker.push("\nUs") == ("", None)
    assert checker.push("ing it") == ("\n\nUsing it", None)
    assert checker.push(" now") == (" now", None)


def test_a_beginning_that_repeats_itself_is_held_back_from_its_later_start() -> None:
    checker = StopChecker(["aab"])
    assert checker.push("aaa") == ("a", None)
    assert checker.push("b") == ("", "aab")


def test_the_end_of_a_reply_gives_back_what_was_held() -> None:
    checker = StopChecker(["###"])
    assert checker.push("a ##") == ("a ", None)
    assert checker.flush() == "##"
    assert checker.flush() == ""


def test_after_a_match_nothing_comes() -> None:
    checker = StopChecker(["T"])
    assert checker.push("aTb") == ("a", "T")
    assert checker.push("more") == ("", "T")
    assert checker.flush() == ""


def test_empty_stop_strings_are_ignored() -> None:
    assert run(["", ""], ["any", "thing"]) == ("anything", None)


def test_end_tokens_come_from_tokenizer_config_and_generation_config_together(byte_level: Tokenizer) -> None:
    ids = stop_token_ids(byte_level, {"eos_token_id": 5}, {"eos_token_id": [6, 7]})
    assert ids == {byte_level.eos_id, 5, 6, 7}
    assert stop_token_ids(byte_level, {"text_config": {"eos_token_id": 9}}, {}) >= {9}


@pytest.mark.parametrize("value", [None, [], [None], -1, True, "2"])
def test_a_settings_value_that_is_no_id_adds_none(byte_level: Tokenizer, value: object) -> None:
    assert stop_token_ids(byte_level, {"eos_token_id": value}, {}) == {byte_level.eos_id}


@pytest.mark.parametrize("end", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"])
def test_the_end_of_turn_token_of_the_template_ends_a_reply(byte_level_hf: Callable[..., Any], end: str) -> None:
    hf = byte_level_hf(("<|endoftext|>", end), eos_token="<|endoftext|>")
    tokenizer = Tokenizer(hf, chat_template=f"{{{{ messages[0].content + '{end}' }}}}")
    assert stop_token_ids(tokenizer, {}, {}) == {tokenizer.eos_id, tokenizer.control_id(end)}


def test_a_token_that_the_template_does_not_write_ends_nothing(byte_level_hf: Callable[..., Any]) -> None:
    hf = byte_level_hf(("<|endoftext|>", "<|eot_id|>"), eos_token="<|endoftext|>")
    tokenizer = Tokenizer(hf, chat_template="{{ messages[0].content }}")
    assert stop_token_ids(tokenizer, {}, {}) == {tokenizer.eos_id}


def test_plain_text_that_looks_like_an_end_token_ends_nothing(byte_level_hf: Callable[..., Any]) -> None:
    tokenizer = Tokenizer(byte_level_hf(), chat_template="{{ messages[0].content + '<|im_end|>' }}")
    assert stop_token_ids(tokenizer, {}, {}) == frozenset()


def test_the_token_that_ends_a_channel_does_not_end_the_reply(byte_level_hf: Callable[..., Any]) -> None:
    hf = byte_level_hf(("<|end|>", "<|channel|>", "<|return|>"))
    template = "{{ '<|channel|>final' + messages[0].content + '<|end|><|return|>' }}"
    tokenizer = Tokenizer(hf, chat_template=template)
    assert stop_token_ids(tokenizer, {}, {}) == {tokenizer.control_id("<|return|>")}
    phi = Tokenizer(byte_level_hf(("<|end|>",)), chat_template="{{ messages[0].content + '<|end|>' }}")
    assert stop_token_ids(phi, {}, {}) == {phi.control_id("<|end|>")}


def test_the_starter_ends_its_turns(starter: Tokenizer) -> None:
    assert stop_token_ids(starter, {"eos_token_id": 0}, {}) == {0, starter.control_id("<|im_end|>")}
