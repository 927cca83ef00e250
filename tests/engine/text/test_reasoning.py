"""Reasoning told from the answer, fed with arbitrary cuts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.text import ReasoningFormat, ReasoningSplitter, Tokenizer, detect_reasoning, split_reasoning

QUICK = settings(deadline=None, max_examples=300, derandomize=True)
THINK = ReasoningFormat("<think>", "</think>")


def split(pieces: list[str], is_open: bool = False, known: ReasoningFormat = THINK) -> tuple[str, str]:
    splitter = ReasoningSplitter(known, is_open)
    parts = [*map(splitter.push, pieces), splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


CASES = [
    ("<think>\nwhy\n</think>\n\nBecause.", False, ("why", "Because.")),
    ("\n<think>why</think>Because.", False, ("why", "Because.")),
    ("why\n</think>\n\nBecause.", True, ("why", "Because.")),
    ("<think>\n\n</think>\n\nBecause.", False, ("", "Because.")),
    ("<think>\na\n\nb</think>\n    code", False, ("a\n\nb", "    code")),
    ("I was <thinking> hard.", False, ("", "I was <thinking> hard.")),
    ("<thinking> is a word.", False, ("", "<thinking> is a word.")),
    ("Yes. <think>no</think>", False, ("", "Yes. <think>no</think>")),
    ("<think>a <thinking> b</think>c </think> d", False, ("a <thinking> b", "c </think> d")),
    ("<think>never closed", False, ("never closed", "")),
    ("never closed </th", True, ("never closed </th", "")),
    ("  plain", False, ("", "  plain")),
    ("<thi", False, ("", "<thi")),
    ("", False, ("", "")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), CASES)
def test_reasoning_and_answer_are_told_apart(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open) == expected
    assert split(list(text), is_open) == expected


@QUICK
@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "</", "\n", " ", "a", "<", ">", "é"]), max_size=14),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    is_open=st.booleans(),
)
def test_cuts_do_not_change_the_split(parts: list[str], cuts: list[int], is_open: bool) -> None:
    text = "".join(parts)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    assert split(pieces, is_open) == split([text], is_open)


def test_the_answer_is_passed_on_at_once_after_the_reasoning() -> None:
    splitter = ReasoningSplitter(THINK, is_open=False)
    assert splitter.push("<th") == ("", "")
    assert splitter.push("ink>\nwh") == ("wh", "")
    assert splitter.in_reasoning
    assert splitter.push("y </") == ("y ", "")
    assert splitter.push("think>\n") == ("", "")
    assert splitter.push("\nYes <") == ("", "Yes <")
    assert splitter.in_answer
    assert splitter.push("b") == ("", "b")


def test_a_reply_without_reasoning_is_not_held_back() -> None:
    splitter = ReasoningSplitter(THINK, is_open=False)
    assert splitter.push("H") == ("", "H")


def test_reasoning_cut_off_by_the_token_limit_closes_at_the_end() -> None:
    splitter = ReasoningSplitter(THINK, is_open=True)
    assert splitter.push("so far</") == ("so far", "")
    assert splitter.flush() == ("</", "")
    assert splitter.flush() == ("", "")


def test_an_answer_that_comes_without_reasoning_in_a_channel_format_loses_its_header() -> None:
    channels = ReasoningFormat("<|a|>analysis<|m|>", "<|s|>final<|m|>", direct="<|a|>final<|m|>")
    for text in ("<|a|>analysis<|m|>why<|s|>final<|m|>Yes.", "<|a|>final<|m|>Yes."):
        reasoning = "why" if "why" in text else ""
        assert split([text], known=channels) == split(list(text), known=channels) == (reasoning, "Yes.")


def test_a_whole_reply_can_be_split_at_once() -> None:
    assert split_reasoning("<think>a</think>b", THINK) == ("a", "b")
    assert split_reasoning("<think>a</think>b", None) == ("", "<think>a</think>b")


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        ("{{ '<think>\\n' }}", None),
        ("{{ content.split('</think>')[-1] }}", ("<think>", "</think>")),
        ("[THINK]{{ x }}[/THINK]", ("[THINK]", "[/THINK]")),
        ("<seed:think>{{ x }}</seed:think>", ("<seed:think>", "</seed:think>")),
        ("<|channel>thought\n{{ x }}<channel|>", ("<|channel>thought", "<channel|>")),
        ("{{ '<|im_start|>' }}", None),
    ],
)
def test_the_tags_are_the_ones_the_template_closes(
    byte_level_hf: Callable[..., Any], source: str, tags: tuple[str, str] | None
) -> None:
    found = detect_reasoning(source, Tokenizer(byte_level_hf()))
    assert (found and (found.open, found.close)) == tags


def test_a_model_with_tag_tokens_can_reason_though_its_template_does_not_mention_it(
    byte_level_hf: Callable[..., Any],
) -> None:
    tokenizer = Tokenizer(byte_level_hf((), ("<think>", "</think>")))
    assert detect_reasoning(None, tokenizer) == THINK


def test_of_several_pairs_in_a_template_the_models_own_tokens_are_meant(byte_level_hf: Callable[..., Any]) -> None:
    tokenizer = Tokenizer(byte_level_hf(("[THINK]", "[/THINK]")))
    found = detect_reasoning("{{ x.replace('</think>', '[/THINK]') }}", tokenizer)
    assert found == ReasoningFormat("[THINK]", "[/THINK]")


def test_the_starter_does_not_reason(starter: Tokenizer) -> None:
    assert detect_reasoning(starter.chat_template, starter) is None
