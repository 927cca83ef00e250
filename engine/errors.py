"""Every error a user, a file or a request can cause. Each is one sentence plus, where there is one, a remedy."""

from __future__ import annotations

from typing import ClassVar


class OctavoError(Exception):
    """Base of all errors Octavo raises on purpose.

    `message` says what was found, `remedy` what to do about it; `str(error)` is both, on one line.
    """

    default_remedy: ClassVar[str | None] = None  # what helps in every case of a class, where none says more

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        remedy = self.default_remedy if remedy is None else remedy
        self.message = printable(message)
        self.remedy = printable(remedy) if remedy is not None else None

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


def printable(text: str) -> str:
    """A text that may quote a file, with halves of surrogate pairs replaced: no encoding can carry them onwards."""
    return text.encode("utf-8", "replace").decode("utf-8")


class LoadError(OctavoError):
    """A model cannot be loaded: nothing of it stays in memory."""


class UnsupportedModelError(LoadError):
    """The checkpoint is readable, but its architecture or a feature of it is not supported."""

    default_remedy = "Choose another model, or see whether a newer Octavo runs this one."


class ModelConfigError(UnsupportedModelError):
    """A checkpoint's config says what no model can be made of; the message names the key."""

    default_remedy = (
        "Fetch the model's own config.json again (of a GGUF file, the whole file), or choose another model."
    )


class CheckpointError(LoadError):
    """A checkpoint's file is missing, cut off, or says something untrue; names the file and, if known, the tensor."""

    def __init__(
        self, message: str, *, file: str | None = None, tensor: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.file = file
        self.tensor = tensor


class DeviceError(OctavoError):
    """The device asked for is not there or cannot be used."""


class MemoryExhaustedError(OctavoError):
    """The model or its KV cache does not fit into the memory that is free now."""


class RequestError(OctavoError):
    """A request that can never run as it was sent; `field` names the parameter at fault."""

    def __init__(self, message: str, *, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.field = field


class ContextOverflowError(RequestError):
    """The prompt does not fit the window. Carries both numbers, in tokens."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens; this model's context holds {limit}, one of them for the reply.",
            field="messages",
            remedy="Shorten the prompt or load the model with a larger context_length.",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class QueueFullError(OctavoError):
    """As many requests wait as `queue_limit` allows; the caller may try again after `retry_after_s`."""

    def __init__(self, limit: int, retry_after_s: float = 1.0) -> None:
        super().__init__(f"{limit} requests are waiting already.", remedy="Try again in a moment.")
        self.retry_after_s = retry_after_s


class EngineClosedError(OctavoError):
    """The engine was closed or has failed; no request is taken."""
