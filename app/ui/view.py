"""What one tab has of one chat, and what it still needs: a position, not a copy.

Texts only grow, so a tab's position is a number of finished blocks and the picture of the unfinished end; a tab that
was away says its position and gets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.app.ui.feed import ChatFeed
from octavo.app.ui.render import BlockRenderer
from octavo.app.ui.turns import Turn

PATCH = "p"  # the kind of message that changes the text of a reply; the page says when it has drawn one
TURNS_AT_ONCE = 30  # shown when a chat is opened, and added by each "show earlier"


@dataclass(slots=True)
class Position:
    """`finished` blocks were sent for good, then `open`, the HTML of the unfinished end as it looked then."""

    finished: int = 0
    open: str = ""

    def patch(self, text: BlockRenderer) -> list[Any] | None:
        """[first, keep, rest, *more]: block `first` is now the first `keep` UTF-16 units of what it was and `rest`; the
        blocks after it are `more`. The last one is unfinished. None if nothing changed. The position moves on."""
        fresh = [*text.blocks[self.finished :], text.open]
        if len(fresh) == 1 and fresh[0] == self.open:
            return None
        keep = common_prefix(self.open, fresh[0])
        patch = [self.finished, utf16_length(self.open[:keep]), fresh[0][keep:], *fresh[1:]]
        self.finished, self.open = self.finished + len(fresh) - 1, fresh[-1]
        return patch


class View:
    """One tab's view of one chat. `collect` returns what changed since the last call."""

    def __init__(self, feed: ChatFeed, have: dict[str, Any] | None = None) -> None:
        self.feed = feed
        self._shown: list[str] = []  # ids of the turns the tab has, oldest first
        self._places: dict[str, tuple[int, int]] = {}  # their places among their versions, as the tab knows them
        self._order = -1
        self._left = 0  # turns before the first shown one, as the tab knows it
        self._answer = Position()
        self._thought = Position()
        self._version = self._drawing = -1  # of the last shown turn
        self._opened = False
        if have is not None:
            self._resume(have)

    def collect(self) -> list[dict[str, Any]]:
        """Messages for the tab, in order."""
        if self.feed.gone:
            return [{"k": "gone", "chat": self.feed.chat_id}]
        out: list[dict[str, Any]] = []
        if not self._opened:
            self._opened = True
            out.append(self._open())
        if self._order != self.feed.order:
            out.extend(self._new_turns())
        last = self._last()
        if last is not None:
            out.extend(self._changes(last))
        return out

    def earlier(self) -> list[dict[str, Any]]:
        """The turns before the first shown one."""
        first = self._first_shown()
        start = self._left = max(0, first - TURNS_AT_ONCE)
        turns = self.feed.turns[start:first]
        for turn in reversed(turns):
            self._add(turn, 0)
        return [{"k": "earlier", "turns": [_whole(turn) for turn in turns], "left": start}]

    def _open(self) -> dict[str, Any]:
        message: dict[str, Any] = {"k": "chat", "chat": self.feed.chat_id, "title": self.feed.title}
        if self._shown:
            self._left = self._first_shown()
            return {**message, "resumed": True, "left": self._left}
        start = self._left = max(0, len(self.feed.turns) - TURNS_AT_ONCE)
        self._order = self.feed.order
        turns = self.feed.turns[start:]
        for turn in turns:
            self._add(turn)
        self._at_start_of(turns[-1] if turns else None)
        return {**message, "left": start, "turns": [_whole(turn, live=turn is turns[-1]) for turn in turns]}

    def _new_turns(self) -> list[dict[str, Any]]:
        known = {turn.id: at for at, turn in enumerate(self.feed.turns)}
        first = known.get(self._shown[0]) if self._shown else 0
        if first is None:
            self._shown.clear()
            return [self._open()]
        places = [known.get(shown) for shown in self._shown]
        kept = next((at for at, place in enumerate(places) if place != first + at), len(places))
        self._order = self.feed.order
        out: list[dict[str, Any]] = []
        last = self._last()
        if kept == len(self._shown) and last is not None:
            out.extend(self._changes(last))  # what was shown last must be whole before something follows it
        dropped = kept < len(self._shown)
        if dropped:
            out.append({"k": "drop", "from": self._shown[kept]})
            del self._shown[kept:]
        out.extend(self._new_places(known))
        start = known[self._shown[-1]] + 1 if self._shown else 0
        turns = self.feed.turns[start:]
        for turn in turns:
            self._add(turn)
            out.append({"k": "turn", "turn": _whole(turn, live=turn is turns[-1])})
        if turns:
            self._at_start_of(turns[-1])
        elif dropped:
            self._at_end_of(self._last())
        if first > 0 and self._left == 0:  # the tab does not know that there is something before
            out.extend(self.earlier())
        return out

    def _new_places(self, known: Mapping[str, int]) -> list[dict[str, Any]]:
        """Where turns that stay have got other versions beside them."""
        moved: list[list[Any]] = []
        for shown in self._shown:
            place = _place(self.feed.turns[known[shown]])
            if self._places.get(shown) != place:
                self._places[shown] = place
                moved.append([shown, *place])
        return [{"k": "places", "places": moved}] if moved else []

    def _add(self, turn: Turn, at: int | None = None) -> None:
        self._shown.insert(len(self._shown) if at is None else at, turn.id)
        self._places[turn.id] = _place(turn)

    def _changes(self, turn: Turn) -> list[dict[str, Any]]:
        if turn.message.role == "user":
            return []
        out: list[dict[str, Any]] = []
        if self._drawing != turn.drawing:
            self._drawing = turn.drawing
            self._answer, self._thought = Position(), Position()
        thought = self._thought.patch(turn.thought)
        answer = self._answer.patch(turn.answer)
        if thought is not None or answer is not None:
            patch: dict[str, Any] = {"k": PATCH, "id": turn.id}
            if thought is not None:
                patch["r"] = thought
            if answer is not None:
                patch["a"] = answer
            out.append(patch)
        if self._version != turn.version:
            self._version = turn.version
            out.append({"k": "about", "id": turn.id, **turn.about()})
        return out

    def _resume(self, have: dict[str, Any]) -> None:
        """Go on where the tab was, if the turns it names are still these."""
        shown, answer, thought = have.get("ids"), _number(have.get("answer")), _number(have.get("thought"))
        ids = [turn.id for turn in self.feed.turns]
        if not isinstance(shown, list) or not shown or shown[0] not in ids:
            return
        start = ids.index(shown[0])
        end = start + len(shown) - 1
        if ids[start : end + 1] != shown:
            return
        turn = self.feed.turns[end]
        if not 0 <= answer <= len(turn.answer.blocks) or not 0 <= thought <= len(turn.thought.blocks):
            return
        for turn in self.feed.turns[start : end + 1]:
            self._add(turn)
        self._places = dict.fromkeys(self._shown, (1, 1))  # versions may have come meanwhile
        self._drawing = turn.drawing
        self._answer, self._thought = Position(answer), Position(thought)
        self._order = -1

    def _at_start_of(self, turn: Turn | None) -> None:
        self._answer, self._thought, self._version = Position(), Position(), -1
        self._drawing = -1 if turn is None else turn.drawing
        if turn is not None and not turn.live:
            self._at_end_of(turn)

    def _at_end_of(self, turn: Turn | None) -> None:
        if turn is not None:
            self._answer = Position(len(turn.answer.blocks), turn.answer.open)
            self._thought = Position(len(turn.thought.blocks), turn.thought.open)
            self._version, self._drawing = turn.version, turn.drawing

    def _last(self) -> Turn | None:
        return self.feed.find(self._shown[-1]) if self._shown else None

    def _first_shown(self) -> int:
        if not self._shown:
            return len(self.feed.turns)
        return next((at for at, turn in enumerate(self.feed.turns) if turn.id == self._shown[0]), 0)


def _whole(turn: Turn, *, live: bool = False) -> dict[str, Any]:
    """A turn for a tab that has nothing of it. The blocks of a reply that is being written follow as patches."""
    message = turn.message
    out: dict[str, Any] = {"id": turn.id, "role": message.role, "at": message.created_s}
    if message.role == "user":
        files = [{"name": file.name, "type": file.type, "tokens": file.tokens} for file in message.attachments]
        versions = {"version": message.version, "versions": message.versions}
        return {**out, "text": message.content, "files": files, **versions}
    if not (live and turn.live):
        out["answer"], out["thought"] = _blocks(turn.answer), _blocks(turn.thought)
    return {**out, **turn.about()}


def _place(turn: Turn) -> tuple[int, int]:
    return turn.message.version, turn.message.versions


def _blocks(text: BlockRenderer) -> list[str]:
    return [*text.blocks, text.open] if text.open else list(text.blocks)


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def common_prefix(a: str, b: str) -> int:
    """How many characters two texts share at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def utf16_length(text: str) -> int:
    """Length as JavaScript counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
