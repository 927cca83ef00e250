"""What a chat refuses to do. `code` names the reason for the page's own words (`said.<code>`)."""

from __future__ import annotations

from octavo.engine.errors import OctavoError


class ChatError(OctavoError):
    """A chat cannot do what was asked of it."""

    def __init__(self, message: str, *, remedy: str | None = None, code: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class UnknownChatError(ChatError):
    """There is no chat of that id (any more)."""

    def __init__(self) -> None:
        super().__init__("This chat does not exist or was deleted.", remedy="Start a new one.", code="unknown_chat")


class ChatBusyError(ChatError):
    """The chat is writing a reply already; one at a time."""

    def __init__(self) -> None:
        super().__init__("This chat is still writing a reply.", remedy="Stop it or wait for its end.", code="busy")


class StaleChatError(ChatError):
    """The sender has not seen the newest turns of the chat."""

    def __init__(self) -> None:
        super().__init__(
            "This chat has newer turns than this page shows.", remedy="Reload the page and send again.", code="stale"
        )


class OtherModelError(ChatError):
    """Another model than the chat's is loaded, and nobody has said yet which one is to reply."""

    def __init__(self, chats: str, loaded: str) -> None:
        super().__init__(
            f"This chat was written with {chats}, but {loaded} is loaded.",
            remedy="Choose which of them is to reply.",
            code="other_model",
        )
