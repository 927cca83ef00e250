"""The two places where chats are: the file, and for temporary ones memory alone."""

from __future__ import annotations

from octavo.app.chat.store import ChatStore
from octavo.app.chat.store_rows import new_id
from octavo.app.chat.store_search import SearchHit
from octavo.app.chat.types import TEMPORARY, Chat, ChatSummary


class Shelves:
    """Finds a chat's store by its id. What is in memory is gone with this object; nothing of it reaches the disk."""

    def __init__(self, kept: ChatStore) -> None:
        self.kept = kept
        self.temporary = ChatStore(None)

    def of(self, chat_id: str) -> ChatStore:
        return self.temporary if chat_id.startswith(TEMPORARY) else self.kept

    def create(self, system: str | None, *, temporary: bool) -> Chat:
        if temporary:
            return self.temporary.create_chat(system, chat_id=TEMPORARY + new_id())
        return self.kept.create_chat(system)

    def list_chats(self) -> list[ChatSummary]:
        """Every chat, the last used first."""
        chats = [*self.temporary.list_chats(), *self.kept.list_chats()]
        return sorted(chats, key=lambda chat: -chat.updated_s)

    def search(self, wanted: str) -> list[SearchHit]:
        return [*self.temporary.search(wanted), *self.kept.search(wanted)]

    def purge_deleted(self, older_than_s: float) -> None:
        for store in (self.temporary, self.kept):
            store.purge_deleted(older_than_s)

    def keep(self, chat_id: str) -> Chat | None:
        """Move a temporary chat to the file, under a new id; None if there is no such chat."""
        record = self.temporary.record(chat_id)
        if record is None:
            return None
        sequences = {m.id: ids for m in record.messages if (ids := self.temporary.sequence(m.id))}
        put = self.kept.put(record.renamed(new_id()), sequences=sequences)
        self.temporary.delete_chat(chat_id)
        self.temporary.purge_deleted()
        return self.kept.get_chat(put.chat_id)

    def close(self) -> None:
        self.temporary.close()
