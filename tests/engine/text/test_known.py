"""The next prompt of a chat begins with the ids it was computed with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.text import ChatTemplate, RenderedPrompt, Tokenizer, join_known

QUICK = settings(deadline=None, max_examples=150, derandomize=True)
FIRST = [{"role": "user", "content": "Tell me a story."}]


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids that the tokenizer itself would not choose: a token a letter."""
    return [i for letter in text for i in tokenizer.encode(letter)]


def next_turn(template: ChatTemplate, reply: str, stored: list[int], **more: object) -> RenderedPrompt:
    turns = [*FIRST, {"role": "assistant", "content": reply, **more}, {"role": "user", "content": "Go on."}]
    return template.render(turns, known=[stored])


@pytest.fixture(params=["starter", "byte_level"])
def template(request: pytest.FixtureRequest) -> ChatTemplate:
    return ChatTemplate(request.getfixturevalue(request.param))


@pytest.mark.parametrize("ends", [True, False], ids=["with its end token", "cut off"])
def test_a_second_turn_begins_with_the_first_prompt_and_reply(template: ChatTemplate, ends: bool) -> None:
    tokenizer = template.tokenizer
    reply = "Once there was 山, a hill."
    stored = [*template.render(FIRST).ids, *spelled(tokenizer, reply)]
    if ends:
        stored.append(tokenizer.control_id("<|im_end|>") or 0)
    fresh = next_turn(template, reply, [])
    prompt = next_turn(template, reply, stored)
    assert list(prompt.ids[: len(stored)]) == stored
    assert prompt.reused == len(stored)
    assert list(fresh.ids[: len(stored)]) != stored
    assert tokenizer.decode(prompt.ids, skip_special=False) == fresh.text


def test_what_follows_the_stored_ids_is_tokenized_as_usual(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    stored = [*template.render(FIRST).ids, *tokenizer.encode("Once."), tokenizer.control_id("<|im_end|>") or 0]
    assert next_turn(template, "Once.", stored).ids == next_turn(template, "Once.", []).ids


def test_an_edited_reply_is_tokenized_afresh_from_the_last_control_token(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    first = template.render(FIRST).ids
    stored = [*first, *spelled(tokenizer, "Once there was."), tokenizer.control_id("<|im_end|>") or 0, 5, 6]
    prompt = next_turn(template, "Never there was.", stored)
    assert prompt.ids == next_turn(template, "Never there was.", []).ids
    assert 0 < prompt.reused < len(first)
    assert prompt.ids[prompt.reused - 1] in tokenizer.control_ids


def test_an_edited_question_keeps_only_what_came_before_it(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    stored = [*template.render(FIRST).ids, *spelled(tokenizer, "Once."), tokenizer.control_id("<|im_end|>") or 0]
    edited = [{"role": "user", "content": "Tell me a joke."}]
    prompt = template.render(edited, known=[stored])
    assert prompt.ids == template.render(edited).ids
    assert prompt.reused < len(template.render(FIRST).ids)


def test_a_new_try_of_a_reply_has_the_same_prompt(template: ChatTemplate) -> None:
    first = template.render(FIRST)
    stored = [*first.ids, *spelled(template.tokenizer, "Once.")]
    assert template.render(FIRST, known=[stored]).ids == first.ids


def test_half_a_character_at_the_end_of_the_stored_ids_is_dropped(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    first = template.render(FIRST).ids
    half = tokenizer.encode("😀")[:1]
    stored = [*first, *spelled(tokenizer, "Once "), *half]
    prompt = template.render([*FIRST, {"role": "assistant", "content": "Once "}], continue_final=True, known=[stored])
    assert list(prompt.ids) == stored[:-1]


def test_the_tokens_of_a_stop_string_at_the_end_are_dropped(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    first = template.render(FIRST).ids
    stored = [*first, *spelled(tokenizer, "Once."), *tokenizer.encode("\n\nUser:")]
    prompt = next_turn(template, "Once.", stored)
    kept = [*first, *spelled(tokenizer, "Once.")]
    assert list(prompt.ids[: len(kept)]) == kept
    assert prompt.reused == len(kept)
    assert tokenizer.decode(prompt.ids, skip_special=False) == prompt.text


def test_a_stop_string_that_ends_within_a_token_leaves_the_rest_of_the_text(byte_level: Tokenizer) -> None:
    pair = next(i for i in range(256, byte_level.vocab_size) if byte_level.token_text(i) == "he")
    fresh = byte_level.encode("<|im_start|>ah<|im_end|>", allow_control=True)
    stored = [fresh[0], *byte_level.encode("a"), pair]
    joined = join_known(byte_level, fresh, [stored])
    assert byte_level.decode(joined.ids, skip_special=False) == "<|im_start|>ah<|im_end|>"
    assert joined.reused == 2


def test_ids_are_never_cut_within_a_character(byte_level: Tokenizer) -> None:
    fresh = byte_level.encode("<|im_start|>a山<|im_end|>", allow_control=True)
    stored = [fresh[0], *byte_level.encode("a"), *byte_level.encode("岩")[:1]]  # the same first byte
    assert byte_level.token_bytes(stored[-1]) == "山".encode()[:1]
    joined = join_known(byte_level, fresh, [stored])
    assert byte_level.decode(joined.ids, skip_special=False) == "<|im_start|>a山<|im_end|>"
    assert joined.reused == 2


def test_a_continued_reply_goes_on_from_its_own_ids(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    stored = [*template.render(FIRST).ids, *spelled(tokenizer, "Once there ")]
    turns = [*FIRST, {"role": "assistant", "content": "Once there "}]
    prompt = template.render(turns, continue_final=True, known=[stored])
    assert list(prompt.ids) == stored


def test_the_longest_of_several_stored_beginnings_is_taken(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    first = template.render(FIRST).ids
    good = [*first, *spelled(tokenizer, "Once.")]
    turns = [*FIRST, {"role": "assistant", "content": "Once."}, {"role": "user", "content": "More."}]
    prompt = template.render(turns, known=[[*first, *spelled(tokenizer, "Other.")], good, list(first), []])
    assert list(prompt.ids[: len(good)]) == good


def test_a_control_token_is_not_the_same_as_its_spelling(template: ChatTemplate) -> None:
    """A reply that wrote an end token and went on is not the same as a text in which somebody typed it."""
    tokenizer = template.tokenizer
    first = template.render(FIRST).ids
    stored = [*first, *tokenizer.encode("Once<|im_end|> more", allow_control=True)]
    prompt = next_turn(template, "Once<|im_end|> more", stored)
    assert prompt.ids == next_turn(template, "Once<|im_end|> more", []).ids


def test_reasoning_that_the_template_strips_is_not_kept(byte_level: Tokenizer) -> None:
    template = ChatTemplate(byte_level)
    first = template.render(FIRST).ids
    reply = byte_level.encode("<think>\nwhy\n</think>\n\nOnce.<|im_end|>", allow_control=True)
    prompt = next_turn(template, "Once.", [*first, *reply], reasoning="why")
    assert prompt.ids == next_turn(template, "Once.", []).ids
    assert prompt.ids[: prompt.reused] == first[: prompt.reused]
    assert prompt.ids[prompt.reused - 1] in byte_level.control_ids


def test_reasoning_that_the_template_keeps_is_reused(byte_level: Tokenizer) -> None:
    template = ChatTemplate(byte_level)
    stored = [
        *template.render(FIRST).ids,
        *byte_level.encode("<think>\n", allow_control=True),
        *spelled(byte_level, "why\n"),
        *byte_level.encode("</think>\n\nOnce", allow_control=True),
    ]
    turns = [*FIRST, {"role": "assistant", "content": "Once", "reasoning": "why"}]
    prompt = template.render(turns, continue_final=True, known=[stored])
    assert list(prompt.ids) == stored


def test_sentencepiece_chats_reuse_their_ids_too(sentencepiece: Tokenizer) -> None:
    template = ChatTemplate(sentencepiece)  # plain lines: no control token but the begin token
    first = template.render(FIRST).ids
    reply = [
        i
        for word in (" Once", " there", " was")
        for i in sentencepiece.encode_segments([(word, False)], continues=True)
    ]
    stored = [*first, *reply]
    turns = [*FIRST, {"role": "assistant", "content": "Once there was"}, {"role": "user", "content": "Go on."}]
    prompt = template.render(turns, known=[stored])
    assert list(prompt.ids[: len(stored)]) == stored
    assert sentencepiece.decode(prompt.ids) == template.render(turns).text


@QUICK
@given(
    stored=st.lists(st.integers(0, 620), max_size=30),
    text=st.text(st.sampled_from("aeht \n山é"), max_size=20),
    keep=st.integers(0, 30),
)
def test_whatever_is_stored_the_prompt_says_the_rendered_text(
    byte_level: Tokenizer, stored: list[int], text: str, keep: int
) -> None:
    fresh = byte_level.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>", allow_control=True)
    known = [
        fresh[:keep] + stored,
        spelled(byte_level, text),
        [fresh[0], *spelled(byte_level, "user\n" + text), *stored],
    ]
    joined = join_known(byte_level, fresh, known)
    written = byte_level.decode(fresh, skip_special=False)
    assert byte_level.decode(joined.ids, skip_special=False) == written
    assert any(list(joined.ids[: joined.reused]) == ids[: joined.reused] for ids in known) or joined.reused == 0


def test_a_vocabulary_without_exact_bytes_reuses_equal_ids_only() -> None:
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerFast

    backend = RustTokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "ab": 3}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken("[END]", special=True)])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))
    end = tokenizer.control_id("[END]")
    assert end is not None
    assert join_known(tokenizer, [3, end, 3], [[3, end, 1, 2]]).ids == (3, end, 3)
    assert join_known(tokenizer, [3, end, 3], [[3, end, 1]]).ids == (3, end, 3)
    assert join_known(tokenizer, [3, end, 3], [[3, end]]).reused == 2
