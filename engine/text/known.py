"""A chat's next prompt keeps the ids it was already computed with. Knows ids and their bytes, no messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Joined:
    """Ids of a prompt; the first `reused` of them are stored ones."""

    ids: tuple[int, ...]
    reused: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Ids between two control tokens, or one control token: `ids[start:end]`."""

    start: int
    end: int
    control: bool


def join_known(tokenizer: Tokenizer, rendered_ids: Sequence[int], known: Iterable[Sequence[int]]) -> Joined:
    """The prompt `rendered_ids`, with the longest stored beginning that says the same in place of its own.

    A model rarely writes its reply in the tokens that the tokenizer would choose; its stored ids are the ones whose
    keys and values exist. Where the texts part, everything from the last control token before that place is taken
    from `rendered_ids`. At the end of the stored ids, tokens that the text no longer has (a half character, a stop
    string, a trimmed line break) are dropped.
    """
    best = Joined(tuple(rendered_ids), 0)
    runs = _runs(tokenizer, rendered_ids)
    for ids in sorted(known, key=len, reverse=True):
        if len(ids) <= best.reused:
            break
        joined = _join(tokenizer, rendered_ids, runs, ids)
        if joined.reused > best.reused:
            best = joined
    return best


def _join(tokenizer: Tokenizer, rendered: Sequence[int], runs: Sequence[_Run], known: Sequence[int]) -> Joined:
    known_runs = _runs(tokenizer, known)
    for place, (stored, new) in enumerate(zip(known_runs, runs)):
        stored_ids, new_ids = known[stored.start : stored.end], rendered[new.start : new.end]
        if list(stored_ids) == list(new_ids):
            continue
        if tokenizer.has_exact_bytes and not stored.control and not new.control:
            stored_bytes, new_bytes = _bytes(tokenizer, stored_ids), _bytes(tokenizer, new_ids)
            if stored_bytes == new_bytes:
                continue
            is_last = place == len(known_runs) - 1
            if is_last and (new_bytes.startswith(stored_bytes) or stored_bytes.startswith(new_bytes)):
                count, rest = _common_end(tokenizer, stored_ids, new_bytes)
                between = tokenizer.encode_segments([(rest, False)], continues=True) if rest else []
                reused = stored.start + count
                return Joined((*known[:reused], *between, *rendered[new.end :]), reused)
        return Joined((*known[: stored.start], *rendered[new.start :]), stored.start)
    shared = min(len(known_runs), len(runs))
    if shared == 0:
        return Joined(tuple(rendered), 0)
    reused = known_runs[shared - 1].end
    return Joined((*known[:reused], *rendered[runs[shared - 1].end :]), reused)


def _common_end(tokenizer: Tokenizer, stored_ids: Sequence[int], text: bytes) -> tuple[int, str]:
    """(how many of the stored ids lie within `text` and end with a whole character, the text after them)."""
    size = 0
    kept = (0, 0)
    for count, token_id in enumerate(stored_ids, start=1):
        size += len(tokenizer.token_bytes(token_id))
        if size > len(text):
            break
        if _is_character_start(text, size):
            kept = (count, size)
    return kept[0], text[kept[1] :].decode("utf-8", "replace")


def _is_character_start(data: bytes, place: int) -> bool:
    return place == len(data) or data[place] & 0xC0 != 0x80


def _bytes(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join([tokenizer.token_bytes(i) for i in ids])


def _runs(tokenizer: Tokenizer, ids: Sequence[int]) -> list[_Run]:
    runs: list[_Run] = []
    start = 0
    control_ids = tokenizer.control_ids
    for place in [place for place, token_id in enumerate(ids) if token_id in control_ids]:
        if start < place:
            runs.append(_Run(start, place, False))
        runs.append(_Run(place, place + 1, True))
        start = place + 1
    if start < len(ids):
        runs.append(_Run(start, len(ids), False))
    return runs
