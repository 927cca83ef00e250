"""What became of the chats of an import."""

from __future__ import annotations

from typing import Any

from octavo.app.chat.importing import NotAChatError
from octavo.app.chat.store_records import Put

NAMED_FAULTS = 5


class ImportTally:
    """Counts chats as they are put in or refused; `answer` is what the page shows of it."""

    def __init__(self) -> None:
        self._added = self._updated = self._same = self._turns = 0
        self._faults: list[dict[str, str]] = []

    def put(self, put: Put) -> None:
        self._added += put.created
        self._updated += not put.created and put.turns > 0
        self._same += not put.created and put.turns == 0
        self._turns += put.turns

    def fault(self, error: NotAChatError) -> None:
        self._faults.append({"text": error.message, "code": error.code})

    def answer(self) -> dict[str, Any]:
        return {
            "added": self._added,
            "updated": self._updated,
            "same": self._same,
            "turns": self._turns,
            "failed": len(self._faults),
            "faults": self._faults[:NAMED_FAULTS],
        }
