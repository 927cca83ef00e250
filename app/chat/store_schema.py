"""The tables of the file of chats, and how older files get there."""

from __future__ import annotations

import json
import sqlite3

from octavo.app.chat.store_file import Migration
from octavo.app.chat.store_search import create_index, index_message


def _first(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE chats (id TEXT PRIMARY KEY, title TEXT NOT NULL, created_s REAL NOT NULL,"
        " updated_s REAL NOT NULL, head_id TEXT, sampling TEXT NOT NULL DEFAULT '{}')"
    )
    db.execute(
        "CREATE TABLE messages (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
        " chat_id TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE, parent_id TEXT, role TEXT NOT NULL,"
        " content TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '', status TEXT NOT NULL, error TEXT, stats TEXT,"
        " created_s REAL NOT NULL, model TEXT, nonce TEXT,"
        " base_id TEXT, base_tokens INTEGER NOT NULL DEFAULT 0, prompt_ids BLOB, token_ids BLOB)"
    )
    db.execute("CREATE INDEX messages_of_chat ON messages(chat_id)")
    db.execute("CREATE INDEX messages_by_parent ON messages(parent_id)")
    db.execute("CREATE UNIQUE INDEX messages_nonce ON messages(chat_id, nonce) WHERE nonce IS NOT NULL")


def _tree_settings_and_search(db: sqlite3.Connection) -> None:
    """Each message names the child that is shown after it, so that turning to another version and back shows the same.

    System texts move from the messages to their chat.
    """
    for column in (
        "model TEXT",
        "pinned INTEGER NOT NULL DEFAULT 0",
        "folder TEXT NOT NULL DEFAULT ''",
        "tags TEXT NOT NULL DEFAULT '[]'",
        "system TEXT NOT NULL DEFAULT ''",
        "settings TEXT NOT NULL DEFAULT '{}'",
        "active_root_id TEXT",
        "deleted_s REAL",
    ):
        db.execute(f"ALTER TABLE chats ADD COLUMN {column}")
    for column in ("active_child_id TEXT", "attachments TEXT NOT NULL DEFAULT '[]'", "error_code TEXT"):
        db.execute(f"ALTER TABLE messages ADD COLUMN {column}")
    db.execute("DROP INDEX messages_of_chat")
    db.execute("CREATE INDEX messages_of_chat ON messages(chat_id, parent_id)")
    db.execute(
        "CREATE TABLE presets (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, system TEXT NOT NULL DEFAULT '',"
        " sampling TEXT NOT NULL DEFAULT '{}', created_s REAL NOT NULL)"
    )
    create_index(db)
    for chat in db.execute("SELECT id, head_id, sampling FROM chats").fetchall():
        sampling = json.loads(chat["sampling"])
        _take_up(db, chat["id"], chat["head_id"], {"sampling": sampling} if sampling else {})
    for row in db.execute("SELECT seq, content FROM messages").fetchall():
        index_message(db, row["seq"], row["content"])
    db.execute("ALTER TABLE chats DROP COLUMN head_id")
    db.execute("ALTER TABLE chats DROP COLUMN sampling")


def _take_up(db: sqlite3.Connection, chat_id: str, head_id: str | None, settings: dict[str, object]) -> None:
    rows = db.execute("SELECT * FROM messages WHERE chat_id = ? ORDER BY seq", (chat_id,)).fetchall()
    by_id = {row["id"]: row for row in rows}
    systems = [row for row in rows if row["role"] == "system"]
    gone = {row["id"] for row in systems}

    def parent_of(row: sqlite3.Row) -> str | None:
        parent = row["parent_id"]
        while parent in gone:
            parent = by_id[parent]["parent_id"]
        return parent if parent in by_id else None

    parents = {row["id"]: parent_of(row) for row in rows if row["id"] not in gone}
    active = {parent: child for child, parent in parents.items()}  # the newest, except on the branch that is shown
    current = head_id if head_id in parents else None
    while current is not None:
        active[parents[current]] = current
        current = parents[current]
    for child, parent in parents.items():
        db.execute(
            "UPDATE messages SET parent_id = ?, active_child_id = ? WHERE id = ?", (parent, active.get(child), child)
        )
    db.execute("DELETE FROM messages WHERE chat_id = ? AND role = 'system'", (chat_id,))
    db.execute(
        "UPDATE chats SET active_root_id = ?, system = ?, settings = ? WHERE id = ?",
        (
            active.get(None),
            "\n\n".join(row["content"] for row in systems),
            json.dumps(settings),
            chat_id,
        ),
    )


# Each step takes the schema from its place in the list to the next; a step that was released is never edited.
MIGRATIONS: tuple[Migration, ...] = (_first, _tree_settings_and_search)
