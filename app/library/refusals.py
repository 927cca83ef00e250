"""The hub library's errors as sentences: which of them mean the network, the name, the token, the terms or the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.app.library.errors import (
    AccessError,
    DiskFullError,
    DownloadError,
    LibraryError,
    ModelNotFoundError,
    OfflineError,
    is_disk_full,
)

_HTTP_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2"})
_LONGEST_SAFE_PATH = 250


@contextmanager
def plain_errors(repo_id: str, revision: str = "main", place: Path | None = None) -> Iterator[None]:
    """Raises LibraryError's kinds instead of what huggingface_hub and its HTTP library raise inside the block."""
    try:
        yield
    except LibraryError:
        raise
    except Exception as error:
        plain = _translate(error, repo_id, revision, place)
        if plain is None:
            raise
        raise plain from error


def is_transport(error: Exception) -> bool:
    """Whether the connection broke or never came: worth another try."""
    return type(error).__module__.split(".")[0] in _HTTP_LIBRARIES or isinstance(error, (ConnectionError, TimeoutError))


def _translate(error: Exception, repo_id: str, revision: str, place: Path | None) -> LibraryError | None:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    has_token = _has_token()
    if isinstance(error, errors.GatedRepoError):
        return no_access(repo_id, status, has_token)
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFoundError(f"{repo_id} has no revision {revision!r}.", remedy="Check model.revision.")
    if isinstance(error, errors.RepositoryNotFoundError):
        if status == 401 and has_token:
            return no_access(repo_id, status, True)
        return ModelNotFoundError(
            f"There is no model {repo_id} on the Hugging Face hub, or it is private.",
            remedy="Check the name; for a private model set HF_TOKEN to a token that may read it.",
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return OfflineError(f"The Hugging Face hub cannot be reached for {repo_id}.", remedy="Check the network.")
    if isinstance(error, errors.HfHubHTTPError):
        return _http(repo_id, status, has_token)
    if isinstance(error, errors.HFValidationError):
        return ModelNotFoundError(
            f"{repo_id!r} is not a name the Hugging Face hub can have.", remedy="Write it as org/name."
        )
    if is_transport(error):
        return OfflineError(
            f"The connection for {repo_id} broke ({_shown(error)}).", remedy="Try again; it goes on from there."
        )
    if isinstance(error, OSError):
        return _system(error, repo_id, place)
    return None


def _http(repo_id: str, status: int | None, has_token: bool) -> LibraryError:
    if status in {401, 403}:
        return no_access(repo_id, status, has_token)
    if status == 429:
        return DownloadError("The Hugging Face hub asks for a pause (429).", remedy="Try again in some minutes.")
    return DownloadError(f"The Hugging Face hub answered {status} for {repo_id}.", remedy="Try again later.")


def _system(error: OSError, repo_id: str, place: Path | None) -> LibraryError:
    if is_disk_full(error):
        return DiskFullError(place or Path.cwd())
    path = str(error.filename or "")
    if len(path) > _LONGEST_SAFE_PATH:
        return LibraryError(
            f"{path} cannot be written: its {len(path)} characters are too many for this system.",
            remedy="Set HF_HOME to a folder with a short path; some systems allow only 260 characters.",
        )
    return DownloadError(f"Downloading {repo_id} failed ({_shown(error)}).", remedy="Try again; it goes on from there.")


def no_access(repo_id: str, status: int | None, has_token: bool) -> AccessError:
    """The three different refusals: no token, a token that is none, a token whose owner may not read this."""
    if not has_token:
        return AccessError(
            f"Access to {repo_id} must be granted on its Hugging Face page.",
            reason="no token",
            remedy="Accept the terms there, then set the environment variable HF_TOKEN to a read token, or enter one "
            "on the page under Models.",
        )
    if status == 401:
        return AccessError(
            "The Hugging Face hub refused the token that is set.",
            reason="wrong token",
            remedy="Set HF_TOKEN to a valid read token, or enter one on the page under Models.",
        )
    return AccessError(
        f"The token that is set has no access to {repo_id} yet.",
        reason="no access",
        remedy="Accept the terms on the model's Hugging Face page and wait until access is granted.",
    )


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _shown(error: Exception) -> str:
    """One line, and never a query string: signed addresses are as good as a key."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.partition("?")[0]
