"""The token for models with terms: where it comes from, whether the hub knows it, setting and forgetting it.

It lives where the hub's own tools keep it (HF_TOKEN, or the file that `hf auth login` writes), and is never logged,
shown or sent anywhere but to the hub.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.app.library.errors import AccessError, DownloadError, LibraryError
from octavo.app.library.hub import ANSWER_S, require_online
from octavo.app.library.refusals import no_access, plain_errors

ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_FORM = re.compile(r"[\x21-\x7e]{4,512}")


@dataclass(frozen=True, slots=True)
class TokenState:
    """Where the token in force comes from; None: there is none. `variable` names it if it is the environment's."""

    source: Literal["environment", "file"] | None
    variable: str | None = None


def token_state() -> TokenState:
    """Asks no network."""
    for name in ENVIRONMENT:
        if os.environ.get(name, "").strip():
            return TokenState("environment", name)
    with suppress(OSError, UnicodeDecodeError):
        if _file().read_text(encoding="utf-8").strip():
            return TokenState("file")
    return TokenState(None)


def save_token(token: str) -> str:
    """Keeps a token after the hub has said whose it is; returns that name.

    Raises AccessError if the hub refuses it, OfflineError, LibraryError for what cannot be a token, if it cannot be
    written, or if a token in the environment would win over it.
    """
    token = token.strip()
    if not _FORM.fullmatch(token):
        raise LibraryError("That is not a token.", remedy="Copy a read token from your Hugging Face settings.")
    state = token_state()
    if state.source == "environment":
        raise LibraryError(
            f"The environment variable {state.variable} sets the token, and it would win over this one.",
            remedy=f"Change {state.variable}, or unset it and start Octavo again.",
        )
    name = whose(token)
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(token)
        with suppress(OSError, NotImplementedError):  # Windows has rights of another kind
            file.chmod(0o600)
    except OSError as error:
        raise LibraryError(
            f"The token cannot be written to {file} ({error.strerror or error}).",
            remedy="Make the folder writable, or set the environment variable HF_TOKEN.",
        ) from error
    return name


def forget_token() -> None:
    """Deletes the token's file. Raises LibraryError if the token is the environment's, which stays."""
    state = token_state()
    if state.source == "environment":
        raise LibraryError(f"The token comes from the environment variable {state.variable}.", remedy="Unset it there.")
    try:
        _file().unlink(missing_ok=True)
    except OSError as error:
        raise LibraryError(
            f"{_file()} cannot be deleted ({error.strerror or error}).", remedy="Delete it yourself."
        ) from error


def whose(token: str) -> str:
    """The name of the user a token belongs to, as the hub says. Raises AccessError, OfflineError or DownloadError."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    require_online()
    with plain_errors("the token"):
        headers = build_hf_headers(token=token)
        answer = get_session().get(f"{constants.ENDPOINT}/api/whoami-v2", headers=headers, timeout=ANSWER_S)
    if answer.status_code in {401, 403}:
        refused = no_access("", 401, True)
        raise AccessError("The Hugging Face hub does not know this token.", reason="wrong token", remedy=refused.remedy)
    if answer.status_code != 200:
        raise DownloadError(f"The Hugging Face hub answered {answer.status_code}.", remedy="Try again later.")
    try:
        return str(answer.json()["name"])
    except (ValueError, KeyError, TypeError):
        return "?"


def _file() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_TOKEN_PATH)
