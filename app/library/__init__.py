"""Models on disk: finding, fetching and judging them."""

from octavo.app.library.errors import (
    AccessError,
    DiskFullError,
    DownloadError,
    FetchCancelledError,
    LibraryError,
    ModelNotFoundError,
    OfflineError,
)
from octavo.app.library.resolve import resolve_model
from octavo.app.library.starter import STARTER, fetch_starter, find_starter

__all__ = [
    "STARTER",
    "AccessError",
    "DiskFullError",
    "DownloadError",
    "FetchCancelledError",
    "LibraryError",
    "ModelNotFoundError",
    "OfflineError",
    "fetch_starter",
    "find_starter",
    "resolve_model",
]
