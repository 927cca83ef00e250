"""Guesses from the text itself."""

from __future__ import annotations

from octavo.engine.request import Request, SamplingParams
from octavo.engine.speculate import NgramDrafter


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


def test_a_guess_may_run_into_the_suffix_itself_and_ends_with_the_text() -> None:
    assert guess([7, 8, 7, 8, 7, 8], 9) == (7, 8)


def test_ids_whose_bytes_overlap_are_not_mistaken_for_a_match() -> None:
    # 0x00000100 and 0x00010000: the bytes of two ids contain those of others at odd places
    assert guess([0x01000000, 0x00000001, 3, 0x00000100, 0x00010000, 9, 0x00010000, 0x01000000]) == ()


def test_a_copy_is_followed_past_a_replaced_word_and_not_for_ever() -> None:
    drafter, source = NgramDrafter(), list(range(1, 20))
    asked = request([*source, 99, 3, 4, 5])
    assert drafter.propose([(asked, 2)]) == {"a": (6, 7)}
    asked.tokens.append(50)  # stands where 6 stood
    assert drafter.propose([(asked, 3)]) == {"a": (7, 8, 9)}
    asked.tokens += list(range(60, 70))
    assert drafter.propose([(asked, 3)]) == {}


def test_tokens_that_come_later_are_found_and_a_new_stay_starts_anew() -> None:
    drafter, asked = NgramDrafter(), request([1, 2, 3, 4])
    assert not drafter.has_guess(asked)
    asked.tokens += [9, 2, 3]
    assert drafter.has_guess(asked)
    assert drafter.propose([(asked, 2)]) == {"a": (4, 9)}
    asked.tokens[:] = [5, 6, 7, 5, 6]
    asked.epoch = 2
    assert drafter.propose([(asked, 1)]) == {"a": (7,)}
    drafter.forget(asked)
    assert drafter.propose([(asked, 1)]) == {"a": (7,)}
