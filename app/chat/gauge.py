"""How full the model's window will be when what is being written is sent: cheap enough to ask while it is typed."""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.app.chat.attachments.prompt import with_attachments
from octavo.app.chat.context import as_sent, cuts, message_tokens, room_for_reply, turn_groups
from octavo.app.chat.types import Attachment, Message
from octavo.engine.errors import OctavoError

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.engine.text.tokenizer import Tokenizer

REMEMBERED_CHATS = 64
PIECE = 2000  # characters that are counted at once; only the pieces that changed are counted again

_PIECES = re.compile(rf".{{1,{PIECE}}}(?=\s|\Z)|.{{1,{PIECE}}}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of the next prompt: `before` what is being written, `draft` of that itself with its files.

    `left_out` oldest turns would go, after which `used` are left of the two. `too_long`: not even the newest turn fits.
    """

    before: int
    draft: int
    used: int
    limit: int
    left_out: int = 0
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class _Frame:
    """A chat with an empty turn at its end: its tokens, the estimates by which turns are left out, and what each turn
    takes, which together is exact."""

    tokens: int
    sizes: tuple[int, ...]
    takes: tuple[float, ...]


class ContextGauge:
    """Remembers the chats it measured last, so that a keystroke costs no more than the text around it."""

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[object, ...], _Frame] = OrderedDict()
        self._engine: weakref.ref[Engine] | None = None  # whose tokens these are
        self._lock = threading.Lock()

    def measure(
        self,
        engine: Engine,
        turns: Sequence[Message],
        draft: str,
        *,
        attachments: Sequence[Attachment] = (),
        max_tokens: int | None = None,
    ) -> Reading:
        """The window with `turns` (system texts first) and then `draft` in it. Call it in a thread.

        Exact but for the few tokens that texts share at their borders.
        """
        frame = self._frame(engine, turns)
        written = count_tokens(engine.tokenizer, with_attachments(draft, attachments))
        window = engine.context_length
        most = window - room_for_reply(window, max_tokens)
        total = frame.tokens + written
        left_out, used = 0, total
        if total > most and len(frame.sizes) > 1:
            for left_out in cuts(frame.sizes, total - most, window):
                used = round(total - sum(frame.takes[:left_out]))
                if used <= most:
                    break
        return Reading(frame.tokens, written, used, window, left_out, used >= window)

    def _frame(self, engine: Engine, turns: Sequence[Message]) -> _Frame:
        system = tuple(turn.content for turn in turns if turn.role == "system")
        # A turn's text stays, but for the last one's, which may be growing.
        key = (system, tuple(turn.id for turn in turns), len(turns[-1].content) if turns else 0)
        with self._lock:
            if self._engine is None or self._engine() is not engine:
                self._engine = weakref.ref(engine)
                self._frames.clear()
            frame = self._frames.get(key)
            if frame is not None:
                self._frames.move_to_end(key)
                return frame
        frame = _measured(engine, turns)
        with self._lock:
            if self._engine() is engine:
                self._frames[key] = frame
            while len(self._frames) > REMEMBERED_CHATS:
                self._frames.popitem(last=False)
        return frame


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Tokens of a text, piece by piece: the tokenizer remembers what it saw, so a changed text costs its change."""
    return sum(len(tokenizer.encode(piece)) for piece in _PIECES.findall(text))


def _measured(engine: Engine, turns: Sequence[Message]) -> _Frame:
    template = engine.template
    chat = turns[-1].chat_id if turns else ""
    whole = [*turns, Message("", chat, "user", "")]
    groups = turn_groups(whole)
    sizes = tuple(sum(message_tokens(template, message) for message in group) for group in groups)
    system = [turn for turn in whole if turn.role == "system"]
    earlier = [turn for group in groups[:-1] for turn in group]
    try:
        tokens = len(template.render([as_sent(turn) for turn in (*system, *earlier, *groups[-1])]).ids)
        alone = len(template.render([as_sent(turn) for turn in (*system, *groups[-1])]).ids) if earlier else tokens
    except OctavoError:  # a template that refuses an empty turn: an estimate
        tokens = sum(message_tokens(template, message) for message in (*system, *earlier, *groups[-1]))
        return _Frame(tokens, sizes, sizes)
    missing = (tokens - alone - sum(sizes[:-1])) / max(1, len(earlier))  # by which the estimate of a message is wrong
    return _Frame(tokens, sizes, tuple(size + missing * len(group) for size, group in zip(sizes, groups)))
