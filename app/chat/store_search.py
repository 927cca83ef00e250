"""Finding chats by what is written in them, in any script.

SQLite's full-text index splits at blanks, which Chinese, Japanese, Korean and Thai do not write between words, and its
trigram form finds nothing shorter than three characters. So each run of such characters is indexed as its overlapping
pairs: two neighbouring characters are one word to the index, and longer words are phrases of pairs.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

NEWEST_TURNS = 5000  # of the turns in which a word is found, so many are looked at, the newest first
MOST_HITS = 200
REWRITTEN_TURNS = 10_000  # an index of so many is written anew within half a second
BEFORE, AFTER = 12, 90  # characters of a snippet around what was found: its one line in the list has room for some 30

# Han with its extensions, kana, hangul, bopomofo, Thai, Lao, Myanmar, Khmer: scripts without blanks between words.
_UNSPACED = "々〆〇㐀-䶿一-鿿豈-﫿\U00020000-\U0003ffffぁ-ゟ゠-ヿㇰ-ㇿᄀ-ᇿ가-힯ㄅ-ㄯก-๛ກ-ໟက-႟ក-៿"
_PIECES = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}\\W]+")
_RUN = re.compile(f"[{_UNSPACED}]")


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A chat that was found. `message_id` is its newest turn with the words, None where the title has them."""

    chat_id: str
    message_id: str | None = None
    snippet: str = ""


def create_index(db: sqlite3.Connection) -> None:
    db.execute("CREATE VIRTUAL TABLE turn_words USING fts5(words, tokenize = 'unicode61 remove_diacritics 2')")


def index_message(db: sqlite3.Connection, seq: int, content: str) -> None:
    """Make the text of message number `seq` findable; what it had before is forgotten."""
    index_words(db, seq, words_of(content))


def words_of(content: str) -> str:
    """What of a text can be found, as `index_words` takes it."""
    return " ".join(_words(content))


def index_words(db: sqlite3.Connection, seq: int, words: str) -> None:
    """`index_message` for a text whose words are known."""
    db.execute("DELETE FROM turn_words WHERE rowid = ?", (seq,))
    if words:
        db.execute("INSERT INTO turn_words (rowid, words) VALUES (?, ?)", (seq, words))


def forget_message(db: sqlite3.Connection, seq: int) -> None:
    """Before message number `seq` is erased."""
    db.execute("DELETE FROM turn_words WHERE rowid = ?", (seq,))


def forget_chat(db: sqlite3.Connection, chat_id: str) -> None:
    """Before its messages are erased."""
    db.execute("DELETE FROM turn_words WHERE rowid IN (SELECT seq FROM messages WHERE chat_id = ?)", (chat_id,))


def overwrite_forgotten(db: sqlite3.Connection) -> None:
    """Write the index anew without the words of what was forgotten. A large one, where this takes longer, loses them as
    it grows and merges its parts."""
    if db.execute("SELECT count(*) FROM turn_words_docsize").fetchone()[0] <= REWRITTEN_TURNS:
        db.execute("INSERT INTO turn_words (turn_words) VALUES ('optimize')")


def search(db: sqlite3.Connection, wanted: str) -> list[SearchHit]:
    """Chats whose title, folder or tags contain all words of `wanted`, or that have a turn which does.

    The last used comes first. A word matches the beginning of a word (in a title any part of it). Of "#word", only
    chats with a tag that begins so are looked through.
    """
    starts = [word[1:] for word in folded(wanted).split() if _is_tag(word)]
    terms = [word for word in folded(wanted).split() if not _is_tag(word)]
    if not terms and not starts:
        return []
    found: dict[str, tuple[float, SearchHit]] = {}
    tagged: list[str] = []
    for row in db.execute("SELECT id, title, folder, tags, updated_s FROM chats WHERE deleted_s IS NULL"):
        tags = [folded(tag) for tag in json.loads(row["tags"])]
        if not all(any(tag.startswith(start) for tag in tags) for start in starts):
            continue
        tagged.append(row["id"])
        named = "\n".join([folded(f"{row['title']}\n{row['folder']}"), *tags])
        if all(term in named for term in terms):
            found[row["id"]] = (row["updated_s"], SearchHit(row["id"]))
    query = match_expression(" ".join(terms))
    if query is not None:
        rows = db.execute(
            "SELECT max(m.seq), m.id, m.chat_id, m.content, c.updated_s FROM"
            " (SELECT rowid FROM turn_words WHERE turn_words MATCH ? ORDER BY rowid DESC LIMIT ?) f"
            " JOIN messages m ON m.seq = f.rowid JOIN chats c ON c.id = m.chat_id"
            " WHERE c.deleted_s IS NULL AND (? OR c.id IN (SELECT value FROM json_each(?)))"
            " GROUP BY m.chat_id ORDER BY c.updated_s DESC LIMIT ?",
            (query, NEWEST_TURNS, not starts, json.dumps(tagged if starts else []), MOST_HITS),
        )
        for row in rows:
            hit = SearchHit(row["chat_id"], row["id"], snippet(row["content"], terms))
            found[row["chat_id"]] = (row["updated_s"], hit)
    return [hit for _, hit in sorted(found.values(), key=lambda pair: -pair[0])][:MOST_HITS]


def _is_tag(word: str) -> bool:
    return word.startswith("#") and len(word) > 1


def match_expression(wanted: str) -> str | None:
    """`wanted` in the index's language; None if nothing in it can be looked for."""
    parts = []
    for piece in _PIECES.findall(folded(wanted)):
        if not _RUN.match(piece):
            parts.append(f'"{piece}"*')
        elif len(piece) == 1:
            parts.append(f'"{piece}"*')  # the beginning of a pair
        else:
            parts.append('"' + " ".join(_pairs(piece)) + '"')
    return " AND ".join(parts) or None


def snippet(content: str, terms: Iterable[str]) -> str:
    """The piece of `content` around the first of `terms` on one line."""
    text = " ".join(content.split())
    lowered = text.lower()
    places = [place for term in terms if (place := lowered.find(term)) >= 0]
    start = max(0, min(places, default=0) - BEFORE)
    end = min(len(text), min(places, default=0) + AFTER)
    if start > 0 and (blank := text.find(" ", start - 1, start + BEFORE - 1)) >= 0:
        start = blank + 1
    if end < len(text) and (blank := text.rfind(" ", min(places, default=0) + AFTER // 2, end + 1)) >= 0:
        end = blank
    return ("…" if start > 0 else "") + text[start:end] + ("…" if end < len(text) else "")


def folded(text: str) -> str:
    """Without differences of case and width."""
    return unicodedata.normalize("NFKC", text).casefold()


def _words(text: str) -> Iterable[str]:
    for piece in _PIECES.findall(folded(text)):
        if _RUN.match(piece):
            yield from _pairs(piece)
            yield piece[-1]
        else:
            yield piece


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]
