"""What a chat refuses to do."""

from __future__ import annotations

from octavo.engine.errors import OctavoError


class ChatError(OctavoError):
    """A chat cannot do what was asked of it."""


class UnknownChatError(ChatError):
    """There is no chat of that id (any more)."""

    def __init__(self) -> None:
        super().__init__("This chat does not exist or was deleted.", remedy="Start a new one.")


class ChatBusyError(ChatError):
    """The chat is writing a reply already; one at a time."""

    def __init__(self) -> None:
        super().__init__("This chat is still writing a reply.", remedy="Stop it or wait for its end.")


class StaleChatError(ChatError):
    """The sender has not seen the newest turns of the chat."""

    def __init__(self) -> None:
        super().__init__("This chat has newer turns than this page shows.", remedy="Reload the page and send again.")
