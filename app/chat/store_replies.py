"""One reply in the file of chats while it is written: it only grows, and it ends once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from octavo.app.chat import store_search
from octavo.app.chat.cuts import SENTENCES, Cut
from octavo.app.chat.store_file import StoreError, StoreFile
from octavo.app.chat.store_rows import from_stats, pack, to_message, unpack
from octavo.app.chat.types import Message, MessageStatus, ReplyStats

# A message `m` with its place among the versions beside it.
COUNTED = (
    " m.*, (SELECT count(*) FROM messages v WHERE v.chat_id = m.chat_id AND v.parent_id IS m.parent_id) AS versions,"
    " (SELECT count(*) FROM messages v WHERE v.chat_id = m.chat_id AND v.parent_id IS m.parent_id AND v.seq <= m.seq)"
    " AS version"
)


class ReplyStore:
    """What a store does with replies. Every method may be called from any thread."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file

    def save_partial(self, message_id: str, content: str, reasoning: str, token_ids: Sequence[int] = ()) -> bool:
        """Keep what a running reply has so far. Does nothing (and says False) if that would shorten it or it ended."""
        with self._file.writing() as db:
            done = db.execute(
                "UPDATE messages SET content = ?, reasoning = ?, token_ids = ? WHERE id = ? AND status = 'streaming'"
                " AND length(content) <= length(?) AND length(reasoning) <= length(?)",
                (content, reasoning, pack(token_ids), message_id, content, reasoning),
            )
            return done.rowcount > 0

    def finish_reply(
        self,
        message_id: str,
        status: MessageStatus,
        content: str,
        reasoning: str = "",
        *,
        token_ids: Sequence[int] = (),
        error: str | None = None,
        error_code: str | None = None,
        stats: ReplyStats | None = None,
    ) -> Message | None:
        """End a running reply. A reply that has ended already stays as it is; None if its chat was erased."""
        with self._file.writing() as db:
            row = db.execute("SELECT seq, chat_id, status FROM messages WHERE id = ?", (message_id,)).fetchone()
            if row is None:
                return None
            if row["status"] == "streaming":
                db.execute(
                    "UPDATE messages SET status = ?, content = ?, reasoning = ?, token_ids = ?, error = ?,"
                    " error_code = ?, stats = ? WHERE seq = ?",
                    (
                        status,
                        content,
                        reasoning,
                        pack(token_ids),
                        error,
                        error_code,
                        from_stats(stats),
                        row["seq"],
                    ),
                )
                store_search.index_message(db, row["seq"], content)
                db.execute("UPDATE chats SET updated_s = ? WHERE id = ?", (time.time(), row["chat_id"]))
            return counted(db, message_id)

    def reopen_reply(self, message_id: str, model: str | None = None) -> Message:
        """Make an ended reply one that is being written again, to grow at its end; StoreError if it cannot be."""
        with self._file.writing() as db:
            done = db.execute(
                "UPDATE messages SET status = 'streaming', error = NULL, error_code = NULL, model = coalesce(?, model)"
                " WHERE id = ? AND role = 'assistant' AND status != 'streaming'",
                (model, message_id),
            )
            if not done.rowcount:
                raise StoreError("This reply cannot be continued.", remedy="Reload the page.")
            return counted(db, message_id)

    def set_prompt(self, message_id: str, prompt_ids: Sequence[int], *, base_id: str | None = None) -> None:
        """Keep the ids a reply was made from. What they share with the ids of `base_id`, an earlier reply, is not
        stored twice."""
        with self._file.writing() as db:
            if base_id == message_id:  # a continued reply: what it had so far is part of its prompt now
                base_id = db.execute("SELECT base_id FROM messages WHERE id = ?", (message_id,)).fetchone()["base_id"]
            self._write_prompt(db, message_id, prompt_ids, base_id)
            db.execute("UPDATE messages SET token_ids = NULL WHERE id = ?", (message_id,))

    def sequence(self, message_id: str) -> tuple[int, ...]:
        """Prompt and reply ids of a stored reply, as the engine saw them; empty if they are not known."""
        pieces: list[tuple[int, ...]] = []
        keep: int | None = None
        current: str | None = message_id
        with self._file.reading() as db:
            while current is not None:
                row = db.execute(
                    "SELECT base_id, base_tokens, prompt_ids, token_ids FROM messages WHERE id = ?", (current,)
                ).fetchone()
                if row is None or row["prompt_ids"] is None:
                    return ()
                tail = unpack(row["prompt_ids"]) + unpack(row["token_ids"])
                room = None if keep is None else max(0, keep - row["base_tokens"])
                pieces.append(tail if room is None else tail[:room])
                keep = row["base_tokens"] if keep is None else min(keep, row["base_tokens"])
                current = row["base_id"]
        return tuple(token for piece in reversed(pieces) for token in piece)

    def close_open_replies(self, cut: Cut = "interrupted") -> int:
        """Mark replies that a dead process left unfinished as stopped, by what; how many there were."""
        with self._file.writing() as db:
            rows = db.execute("SELECT seq, content FROM messages WHERE status = 'streaming'").fetchall()
            for row in rows:
                db.execute(
                    "UPDATE messages SET status = 'stopped', error = ?, error_code = ? WHERE seq = ?",
                    (SENTENCES[cut], cut, row["seq"]),
                )
                store_search.index_message(db, row["seq"], row["content"])
        return len(rows)

    def _write_prompt(
        self, db: sqlite3.Connection, message_id: str, prompt_ids: Sequence[int], base_id: str | None
    ) -> None:
        shared = _common_prefix(self.sequence(base_id) if base_id else (), prompt_ids)
        db.execute(
            "UPDATE messages SET base_id = ?, base_tokens = ?, prompt_ids = ? WHERE id = ?",
            (base_id if shared else None, shared, pack(prompt_ids[shared:]), message_id),
        )


def counted(db: sqlite3.Connection, message_id: str) -> Message:
    """A stored message with its place among its versions."""
    return to_message(db.execute(f"SELECT {COUNTED} FROM messages m WHERE m.id = ?", (message_id,)).fetchone())


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    length = 0
    for mine, other in zip(first, second):
        if mine != other:
            break
        length += 1
    return length
