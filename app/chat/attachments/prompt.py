"""How attached files stand in the prompt: each between marks that name it, before what the user wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.app.chat.types import Attachment

_TICKS = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """The content of a user's turn as the model reads it; `text` itself where there are no files."""
    if not attachments:
        return text
    return "\n\n".join([*(_block(attachment) for attachment in attachments), *([text] if text.strip() else [])])


def _block(attachment: Attachment) -> str:
    """The file between fences longer than any inside it, so that no file can end its own."""
    longest = max((len(found) for found in _TICKS.findall(attachment.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"File: {attachment.name}\n{fence}\n{attachment.text.rstrip()}\n{fence}"
