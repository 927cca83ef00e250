"""Prompt lookup: what followed the last time the same few tokens stood in the chat (Saxena, "Prompt Lookup Decoding",
2023). Costs a search through the text and no model; pays where a reply quotes or rewrites what was said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.engine.request import Request
from octavo.engine.speculate.base import Drafter

LONGEST = 32  # matching tokens that are told apart: from there on nearly every guess is right
SHORTEST = 2  # one token alone recurs too often to say anything
DOUBT = 3  # n matching tokens are followed by the same one in about n of n + 3 places, in replies as in prose
STRAYED = 4  # a copy that differs in a place counts as so many times shorter
REACH = 1 << 16  # tokens looked back


@dataclass(slots=True)
class _Text:
    """How far a request's text has been read, and which earlier part of itself it follows."""

    epoch: int
    words: str = ""  # a character a token, as Python searches strings fastest; ids reach a quarter of their range
    source: int = 0  # the place whose token should come next
    support: int = 0  # tokens before it that match the text's last ones; 0 if it follows nothing


class NgramDrafter(Drafter):
    """The longest suffix that occurred before, and of its places the latest one.

    A copy is followed from token to token and looked for only where it ends. Where it puts one word in another's place,
    it is followed a little further, as long as nothing else fits as well.
    """

    name = "ngram"

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        return {request.id: self.beyond(request, 0, count) for request, count in wanted if self._read(request).support}

    def beyond(self, request: Request, after: int, count: int) -> tuple[int, ...]:
        tokens, source = request.tokens, self._read(request).source
        period = len(tokens) - source  # where the source runs into the text's end, it goes on with what was guessed
        return tuple(tokens[source + place % period] for place in range(after, after + count))

    def chance(self, request: Request) -> float:
        support = self._read(request).support
        return support / (support + DOUBT)

    def forget(self, request: Request) -> None:
        self._texts.pop(request.id, None)

    def _read(self, request: Request) -> _Text:
        """The text with what was added since the last time."""
        text, tokens = self._texts.get(request.id), request.tokens
        if text is None or text.epoch != request.epoch:
            text = self._texts[request.id] = _Text(request.epoch)
        new = tokens[len(text.words) :]
        if not new:
            return text
        agrees = text.support > 0
        for token in new if agrees else ():
            fits = tokens[text.source] == token
            agrees = agrees and fits  # wherever among the new tokens a copy strays, something else may fit better now
            text.support = min(LONGEST, text.support + 1) if fits else text.support // STRAYED
            text.source += 1
        text.words += "".join(map(chr, new))
        if not agrees or text.support < SHORTEST:
            source, support = _longest_match(text.words)
            if support >= text.support:
                text.source, text.support = source, support
            elif text.support < SHORTEST:
                text.support = 0
        return text


def _longest_match(words: str) -> tuple[int, int]:
    """(Place behind the latest earlier occurrence of the longest suffix, tokens of that suffix), both 0 if even the
    shortest has none. Where no suffix of n tokens is found, none of n + 1 is looked for."""
    begin = max(0, len(words) - REACH)
    end = len(words) - 1  # a token must follow
    source, size = 0, 0
    while (longer := max(SHORTEST, size + 1)) <= min(LONGEST, len(words) - 1):
        place = words.rfind(words[-longer:], begin, end)
        if place < 0:
            break
        source = end = place + longer
        size = longer
        while size < LONGEST and place > begin and words[place - 1] == words[-size - 1]:
            place, size = place - 1, size + 1
    return source, size
