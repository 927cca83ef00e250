"""Files a user attaches to a message: read as text, shown with their cost in tokens, sent in front of the message.

What a file may do is decided here. Text is decoded in this process; PDF and Word files, which are programs of a kind,
are read by a short-lived process of their own with little memory and little time.
"""

from __future__ import annotations

from octavo.app.chat.attachments.prompt import with_attachments
from octavo.app.chat.attachments.reading import read_file
from octavo.app.chat.attachments.tray import Tray
from octavo.app.chat.attachments.types import AttachmentError, ReadFile

__all__ = ["AttachmentError", "ReadFile", "Tray", "read_file", "with_attachments"]
