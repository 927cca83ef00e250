"""One turn taken out of a chat, and put back again. What follows it stays.

A message of the user goes with its replies, a reply alone. What followed a message comes after the reply before it;
what followed a reply comes after the version beside it, or, if there is none, after the message. So roles keep taking
turns, but where a message is left without a reply.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.app.chat import store_search
from octavo.app.chat.store_file import StoreError

Kind = Literal["exchange", "message", "version", "reply"]

# A message with its replies (an import may have one in several turns), or a reply alone.
_GOING = (
    "WITH RECURSIVE going(id, seq) AS (SELECT id, seq FROM messages WHERE id = :id UNION ALL"
    " SELECT m.id, m.seq FROM going g JOIN messages m ON m.parent_id = g.id WHERE m.role = 'assistant' AND :replies)"
    " SELECT m.* FROM going g JOIN messages m ON m.id = g.id ORDER BY m.id != :id, m.seq"
)
_AFTER = (
    "WITH RECURSIVE below(id) AS (SELECT :id UNION ALL SELECT m.id FROM below b JOIN messages m ON m.parent_id = b.id)"
)


@dataclass(frozen=True, slots=True)
class Removed:
    """What `put_back` needs. `kind` says what was removed: a version of a reply is one of several."""

    chat_id: str
    kind: Kind
    rows: tuple[dict[str, object], ...]  # of the messages, first the one that was to be removed
    place: str | None  # what they followed
    was_shown: bool
    followers: tuple[tuple[str, str], ...]  # turns that came after them, each with the one it followed
    moved_to: str | None  # what those follow now
    before: str | None  # what was shown there before they came

    @property
    def id(self) -> str:
        """Of the turn that was to be removed."""
        return str(self.rows[0]["id"])


def remove_turn(db: sqlite3.Connection, chat_id: str, message_id: str) -> Removed:
    """Erase a turn. Raises StoreError if the chat has no such turn."""
    turn = db.execute("SELECT * FROM messages WHERE id = ? AND chat_id = ?", (message_id, chat_id)).fetchone()
    if turn is None:
        raise StoreError("That turn is not in this chat.", remedy="Reload the page.")
    is_reply = turn["role"] == "assistant"
    going = db.execute(_GOING, {"id": message_id, "replies": not is_reply}).fetchall()
    gone = {row["id"]: row for row in going}
    followers = [
        (row["id"], row["parent_id"])
        for row in db.execute("SELECT id, parent_id FROM messages WHERE chat_id = ? ORDER BY seq", (chat_id,))
        if row["parent_id"] in gone and row["id"] not in gone
    ]
    place = turn["parent_id"]
    beside = _beside(db, turn, is_reply)
    moved_to = beside if is_reply and beside is not None else place
    after: str | None = message_id  # what was shown after all that goes
    while after in gone:
        after = gone[after]["active_child_id"]
    removed = Removed(
        chat_id=chat_id,
        kind=("version" if beside else "reply") if is_reply else ("exchange" if len(going) > 1 else "message"),
        rows=tuple(dict(row) for row in going),
        place=place,
        was_shown=_shown_after(db, chat_id, place) == message_id,
        followers=tuple(followers),
        moved_to=moved_to,
        before=_shown_after(db, chat_id, moved_to),
    )
    for follower, _ in followers:
        _forget_prompts(db, follower)  # they begin with what is erased
        db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (moved_to, follower))
    for row in going:
        store_search.forget_message(db, row["seq"])
        db.execute("DELETE FROM messages WHERE seq = ?", (row["seq"],))
    if removed.was_shown:
        if moved_to == place:
            _show_after(db, chat_id, place, after or beside or _beside(db, turn, False))
        else:
            _show_after(db, chat_id, place, moved_to)
            if after is not None:
                _show_after(db, chat_id, moved_to, after)
    if followers and _shown_after(db, chat_id, moved_to) is None:
        _show_after(db, chat_id, moved_to, followers[-1][0])
    return removed


def put_back(db: sqlite3.Connection, removed: Removed) -> bool:
    """Undo `remove_turn`, whatever was written since; False if the chat or the place is gone."""
    chat_id, place = removed.chat_id, removed.place
    if db.execute("SELECT 1 FROM chats WHERE id = ? AND deleted_s IS NULL", (chat_id,)).fetchone() is None:
        return False
    if place is not None and db.execute("SELECT 1 FROM messages WHERE id = ?", (place,)).fetchone() is None:
        return False
    for row in removed.rows:
        if db.execute("SELECT 1 FROM messages WHERE id = ?", (row["id"],)).fetchone() is not None:
            continue  # an import has brought it meanwhile
        values = {**row, "nonce": None}
        names = ", ".join(values)
        db.execute(f"INSERT INTO messages ({names}) VALUES ({', '.join('?' * len(values))})", tuple(values.values()))
        store_search.index_message(db, int(str(row["seq"])), str(row["content"]))
    for follower, followed in removed.followers:
        _forget_prompts(db, follower)
        db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (followed, follower))
    if _shown_after(db, chat_id, removed.moved_to) in dict(removed.followers):
        _show_after(db, chat_id, removed.moved_to, removed.before or _newest_after(db, chat_id, removed.moved_to))
    if removed.was_shown:
        _show_after(db, chat_id, place, removed.id)
    return True


def _beside(db: sqlite3.Connection, turn: sqlite3.Row, only_role: bool) -> str | None:
    """The turn before this one in its place, or else the one after it; of its role only where that is wanted."""
    rows: Sequence[sqlite3.Row] = db.execute(
        "SELECT id, seq FROM messages WHERE chat_id = ? AND parent_id IS ? AND id != ? AND (? OR role = ?)"
        " ORDER BY seq",
        (turn["chat_id"], turn["parent_id"], turn["id"], not only_role, turn["role"]),
    ).fetchall()
    earlier = [row["id"] for row in rows if row["seq"] < turn["seq"]]
    return earlier[-1] if earlier else rows[0]["id"] if rows else None


def _shown_after(db: sqlite3.Connection, chat_id: str, parent: str | None) -> str | None:
    if parent is None:
        row = db.execute("SELECT active_root_id AS id FROM chats WHERE id = ?", (chat_id,)).fetchone()
    else:
        row = db.execute("SELECT active_child_id AS id FROM messages WHERE id = ?", (parent,)).fetchone()
    shown: str | None = row["id"]
    return shown


def _newest_after(db: sqlite3.Connection, chat_id: str, parent: str | None) -> str | None:
    row = db.execute(
        "SELECT id FROM messages WHERE chat_id = ? AND parent_id IS ? ORDER BY seq DESC LIMIT 1", (chat_id, parent)
    ).fetchone()
    return None if row is None else row["id"]


def _show_after(db: sqlite3.Connection, chat_id: str, parent: str | None, child: str | None) -> None:
    if parent is None:
        db.execute("UPDATE chats SET active_root_id = ? WHERE id = ?", (child, chat_id))
    else:
        db.execute("UPDATE messages SET active_child_id = ? WHERE id = ?", (child, parent))


def _forget_prompts(db: sqlite3.Connection, message_id: str) -> None:
    """The prompts of a turn and all after it are no longer those that a next one continues."""
    db.execute(
        f"{_AFTER} UPDATE messages SET prompt_ids = NULL, base_id = NULL, base_tokens = 0"
        " WHERE id IN (SELECT id FROM below)",
        {"id": message_id},
    )
