"""The stream of text from tokens: equal to one-shot decoding, never stalled, never failing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from octavo.engine.text import Tokenizer

QUICK = settings(deadline=None, max_examples=200, derandomize=True)
ANY_IDS = st.lists(st.integers(-1, 700), max_size=40)


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    stream = tokenizer.detokenizer(prompt or [])
    return [*(stream.push(i) for i in ids), stream.flush()]


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@QUICK
@given(ids=ANY_IDS)
def test_byte_level_streams_equal_one_shot_decoding_for_any_ids(byte_level: Tokenizer, ids: list[int]) -> None:
    text = "".join(streamed(byte_level, ids))
    assert text == byte_level.decode(ids)
    known = [i for i in ids if 0 <= i < byte_level.vocab_size]
    one_shot = byte_level._backend.decode(known, skip_special_tokens=True)
    assert one_shot in (text, text + "\ufffd")  # the library marks half a character at the end


@QUICK
@given(ids=ANY_IDS)
def test_sentencepiece_streams_equal_one_shot_decoding_for_any_ids(sentencepiece: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(sentencepiece, ids)) == sentencepiece.decode(ids)


@QUICK
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40))
def test_sentencepiece_streams_equal_the_library_for_any_text(sentencepiece: Tokenizer, text: str) -> None:
    """But the one character that stands for a blank."""
    ids = sentencepiece.encode(text)
    assert "".join(streamed(sentencepiece, ids)) == sentencepiece._backend.decode(ids, skip_special_tokens=True) == text


@QUICK
@given(ids=ANY_IDS, cut=st.integers(0, 40))
def test_a_reply_is_the_continuation_of_its_prompt(sentencepiece: Tokenizer, ids: list[int], cut: int) -> None:
    prompt, reply = ids[:cut], ids[cut:]
    assert sentencepiece.decode(prompt) + "".join(streamed(sentencepiece, reply, prompt)) == sentencepiece.decode(ids)


def test_blanks_between_sentences_and_words_are_kept(tokenizer: Tokenizer) -> None:
    text = "Hello there! The answer is here."
    assert "".join(streamed(tokenizer, tokenizer.encode(text))) == text


def test_the_first_blank_of_a_reply_is_kept_after_a_prompt_and_dropped_at_the_start_of_a_text(
    sentencepiece: Tokenizer,
) -> None:
    ids = sentencepiece.encode("Hello there")
    prompt = sentencepiece.encode_prompt("The user asks:")
    assert "".join(streamed(sentencepiece, ids, prompt)) == " Hello there"
    assert "".join(streamed(sentencepiece, ids)) == "Hello there"
    assert "".join(streamed(sentencepiece, ids, [1])) == "Hello there"  # a begin token alone is no text


@pytest.mark.parametrize(
    "text",
    ["n" * 300, "ภาษาไทยไม่มีช่องว่างระหว่างคำ", "https://example.org/" + "a1/" * 60],
    ids=["letters", "thai", "url"],
)
def test_text_without_blanks_appears_at_least_every_four_tokens(tokenizer: Tokenizer, text: str) -> None:
    silent = 0
    for piece in streamed(tokenizer, tokenizer.encode(text))[:-1]:
        silent = 0 if piece else silent + 1
        assert silent < 4


def test_an_emoji_comes_whole_with_its_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")
    pieces = streamed(tokenizer, ids)
    assert [piece for piece in pieces if piece.strip()] == ["😀"]
    assert pieces[len(ids) - 1] == "😀"


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_reply_cut_within_a_character_ends_without_its_half(tokenizer: Tokenizer, count: int) -> None:
    ids = [i for i in tokenizer.encode("😀") if len(tokenizer.token_bytes(i)) == 1 and tokenizer.token_bytes(i) != b" "]
    text = "".join(streamed(tokenizer, ids[:count], tokenizer.encode("a")))
    assert text == ("😀" if count == 4 else "")
    assert "".join(streamed(tokenizer, ids, tokenizer.encode("a"))) == "😀"  # the next request is clean


def test_invalid_bytes_are_shown_and_do_not_stall_what_follows(tokenizer: Tokenizer) -> None:
    bad = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\xff")
    lead = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\xf0")
    pieces = streamed(tokenizer, [bad] * 20 + [lead, *tokenizer.encode("ok")], tokenizer.encode("a"))
    assert pieces[:20] == ["\ufffd"] * 20
    assert "".join(pieces[20:]).replace(" ", "") == "\ufffdok"


def test_special_tokens_have_no_text_unless_they_are_kept(byte_level: Tokenizer) -> None:
    end = byte_level.control_id("<|im_end|>")
    assert end is not None
    assert streamed(byte_level, [end]) == ["", ""]
    assert byte_level.detokenizer([], keep=[end]).push(end) == "<|im_end|>"


def test_a_special_token_between_the_bytes_of_a_character_does_not_break_it(byte_level: Tokenizer) -> None:
    first, *rest = byte_level.encode("山")
    end = byte_level.control_id("<|im_end|>")
    assert end is not None
    assert "".join(streamed(byte_level, [first, end, *rest])) == "山"


def test_a_prompt_that_ends_within_a_character_is_completed_by_the_reply(byte_level: Tokenizer) -> None:
    *prompt, last = byte_level.encode("see 山")
    assert byte_level.decode(prompt) + "".join(streamed(byte_level, [last], prompt)) == "see 山"


@pytest.fixture(scope="module")
def word_pieces() -> Tokenizer:
    """A vocabulary whose text depends on neighbouring tokens: none of the two usual kinds."""
    words = ["[UNK]", "hello", "there", "##s", "##ing", "is", "stream", ",", "##\ufffd"]
    backend = RustTokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))


@QUICK
@given(ids=st.lists(st.integers(-1, 7), max_size=30), cut=st.integers(0, 30))
def test_other_kinds_of_vocabulary_stream_like_one_shot_decoding(
    word_pieces: Tokenizer, ids: list[int], cut: int
) -> None:
    prompt, reply = ids[:cut], ids[cut:]
    assert word_pieces.decode(prompt) + "".join(streamed(word_pieces, reply, prompt)) == word_pieces.decode(ids)


def test_other_kinds_of_vocabulary_do_not_stall_on_undecodable_tokens(word_pieces: Tokenizer) -> None:
    pieces = streamed(word_pieces, [1, *[8] * 12])
    assert max(len(run) for run in "".join("x" if piece else "." for piece in pieces[:-1]).split("x")) < 4


def test_streams_of_the_starter_equal_one_shot_decoding(starter: Tokenizer) -> None:
    text = "Once upon a time,\n\n- 山と海\n- naïve 😀👩‍👩‍👧\n```py\n\tprint('x')\n```  "
    ids = starter.encode(text)
    assert "".join(streamed(starter, ids, starter.encode("Tell me:"))) == text


@QUICK
@given(ids=st.lists(st.integers(0, 49_200), max_size=60))
def test_streams_of_the_starter_equal_one_shot_decoding_for_any_ids(starter: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(starter, ids)) == starter.decode(ids)


def test_many_streams_of_one_tokenizer_do_not_disturb_each_other(byte_level_hf: Callable[..., Any]) -> None:
    tokenizer = Tokenizer(byte_level_hf())
    texts = ["ok 😀 one", "山と海", "plain text"]
    streams = [tokenizer.detokenizer([]) for _ in texts]
    ids = [tokenizer.encode(text) for text in texts]
    said = ["" for _ in texts]
    for place in range(max(map(len, ids))):
        for number, stream in enumerate(streams):
            if place < len(ids[number]):
                said[number] += stream.push(ids[number][place])
    assert said == texts
