"""Guesses from the text itself."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from octavo.engine.request import Request, SamplingParams
from octavo.engine.speculate import NgramDrafter
from octavo.engine.speculate.ngram import DOUBT, LONGEST


def request(tokens: list[int], name: str = "a") -> Request:
    made = Request(name, tuple(tokens), SamplingParams(), 0.0)
    made.epoch = 1
    return made


def guess(tokens: list[int], count: int = 4) -> tuple[int, ...]:
    return NgramDrafter().propose([(request(tokens), count)]).get("a", ())


def test_what_followed_the_same_words_is_guessed() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3]) == (4, 5, 6, 7)


def test_the_longest_suffix_wins_and_of_its_places_the_latest() -> None:
    assert guess([1, 2, 3, 50, 2, 3, 60, 9, 1, 2, 3], 1) == (50,)
    assert guess([2, 3, 50, 8, 2, 3, 60, 9, 2, 3], 1) == (60,)


def test_one_word_alone_or_nothing_like_it_guesses_nothing() -> None:
    assert guess([1, 2, 3, 1]) == ()
    assert guess([1, 2, 3, 4, 5]) == ()
    assert guess([1]) == ()


def test_a_guess_that_runs_into_the_suffix_goes_on_with_itself() -> None:
    assert guess([7, 8, 7, 8, 7, 8], 5) == (7, 8, 7, 8, 7)
    assert guess([1, 2, 3, 1, 2], 7) == (3, 1, 2, 3, 1, 2, 3)
    assert guess([5, 9, 9, 9], 3) == (9, 9, 9)


def test_ids_of_any_width_are_told_apart() -> None:
    assert guess([0xD800, 0x10000, 0xFF, 9, 0xD800, 0x10000], 2) == (0xFF, 9)
    assert guess([0x0100, 0x0001, 3, 0x10000, 0x0001]) == ()


def test_a_copy_is_followed_past_a_replaced_word_and_not_for_ever() -> None:
    drafter, source = NgramDrafter(), list(range(1, 40))
    asked = request([*source, 99, *range(3, 15)])
    assert drafter.propose([(asked, 2)]) == {"a": (15, 16)}
    asked.tokens.append(50)  # stands where 15 stood
    assert drafter.propose([(asked, 3)]) == {"a": (16, 17, 18)}
    asked.tokens += [60, 61]
    assert drafter.propose([(asked, 3)]) == {}


def test_a_short_copy_is_left_where_it_differs() -> None:
    drafter, asked = NgramDrafter(), request([1, 2, 3, 4, 5, 99, 1, 2, 3])
    assert drafter.propose([(asked, 1)]) == {"a": (4,)}
    asked.tokens.append(50)
    assert drafter.propose([(asked, 1)]) == {}


def test_the_longer_a_copy_the_surer_is_its_next_token() -> None:
    drafter, source = NgramDrafter(), list(range(1, 60))
    asked, chances = request([*source, 99]), []
    for token in source[:40]:
        asked.tokens.append(token)
        chances.append(drafter.chance(asked))
    assert chances[0] == 0, "one token says nothing"
    assert chances == sorted(chances)
    assert 0.3 < chances[1] < 0.5
    assert 0.9 < chances[-1] < 1
    asked.tokens.append(50)
    assert 0 < drafter.chance(asked) < 0.8


def test_further_guesses_follow_the_first_ones() -> None:
    drafter, asked = NgramDrafter(), request([*range(1, 20), 99, 3, 4, 5])
    assert drafter.propose([(asked, 3)]) == {"a": (6, 7, 8)}
    assert drafter.beyond(asked, 3, 4) == (9, 10, 11, 12)


def test_tokens_that_come_later_are_found_and_a_new_stay_starts_anew() -> None:
    drafter, asked = NgramDrafter(), request([1, 2, 3, 4])
    assert not drafter.chance(asked)
    asked.tokens += [9, 2, 3]
    assert drafter.chance(asked)
    assert drafter.propose([(asked, 2)]) == {"a": (4, 9)}
    asked.tokens[:] = [5, 6, 7, 5, 6]
    asked.epoch = 2
    assert drafter.propose([(asked, 1)]) == {"a": (7,)}
    drafter.forget(asked)
    assert drafter.propose([(asked, 1)]) == {"a": (7,)}


@example(text=[0, 0, 0, 1, 0, 0, 0], pieces=[1, 1])
@example(text=[0, 0, 0, 0, 1, 0, 0, 0], pieces=[1, 1])
@example(text=[0, 1, 2, *[0] * 11, 1], pieces=[5, 5, 3])
@example(text=[0, 1, 2, *[0] * 20, 1], pieces=[5, 5, 5, 5])
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(1, 5), max_size=8))
def test_a_text_read_in_pieces_is_followed_where_its_longest_suffix_stood(text: list[int], pieces: list[int]) -> None:
    asked, drafter, end = request(text[:1]), NgramDrafter(), 1
    for piece in [*pieces, len(text)]:
        asked.tokens[:] = text[: min(len(text), end + piece)]
        end = len(asked.tokens)
        found = drafter.propose([(asked, 1)]).get("a", ())
        longest = max((n for n in range(2, end) if stood(asked.tokens, n)), default=0)
        if longest:
            matched = min(longest, LONGEST)
            assert drafter.chance(asked) >= matched / (matched + DOUBT)
            strays = drafter.chance(asked) > matched / (matched + DOUBT)  # a long copy with another word in it
            assert strays or found[0] in stood(asked.tokens, matched)


def stood(tokens: list[int], size: int) -> set[int]:
    """What followed earlier occurrences of the last `size` tokens."""
    suffix = tokens[-size:]
    return {tokens[at + size] for at in range(len(tokens) - size) if tokens[at : at + size] == suffix}
