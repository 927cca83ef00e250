"""The version of this installation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def octavo_version() -> str:
    """The installed package's version; "not installed" where the code runs straight from a checkout."""
    return version_of("octavo")


def version_of(package: str) -> str:
    """A distribution's version, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
