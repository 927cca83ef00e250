"""Files that are attached to messages still being written: kept here until they are sent, so that a page names them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence

from octavo.app.chat.attachments.types import MOST_FILES, AttachmentError, ReadFile

LARGEST_TRAY = 32_000_000  # characters of all files together; then the oldest go


class Tray:
    """Read files by an id that nobody guesses. In memory alone; may be called from any thread."""

    def __init__(self, largest: int = LARGEST_TRAY) -> None:
        self._largest = largest
        self._files: OrderedDict[str, ReadFile] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def put(self, file: ReadFile) -> str:
        """Keep a file; returns its id."""
        file_id = secrets.token_hex(12)
        with self._lock:
            self._files[file_id] = file
            self._size += len(file.text)
            while self._size > self._largest and len(self._files) > 1:
                _, oldest = self._files.popitem(last=False)
                self._size -= len(oldest.text)
        return file_id

    def get(self, file_id: str) -> ReadFile | None:
        with self._lock:
            file = self._files.get(file_id)
            if file is not None:
                self._files.move_to_end(file_id)
            return file

    def take(self, file_ids: Sequence[str]) -> tuple[ReadFile, ...]:
        """The files of these ids, in this order; they stay until `drop`. Raises AttachmentError if one is not there."""
        if len(file_ids) > MOST_FILES:
            raise AttachmentError("many", most=MOST_FILES)
        found = [self.get(file_id) for file_id in file_ids]
        if None in found:
            raise AttachmentError("lost")
        return tuple(file for file in found if file is not None)

    def drop(self, file_ids: Sequence[str]) -> None:
        """Forget files that were sent or taken away."""
        with self._lock:
            for file_id in file_ids:
                file = self._files.pop(file_id, None)
                if file is not None:
                    self._size -= len(file.text)
