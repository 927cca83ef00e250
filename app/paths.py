"""Where Octavo keeps its files: configuration, data, cache and log, by the habits of the operating system."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP_NAME = "octavo"


def config_file() -> Path:
    """`config.yaml` in the user's configuration folder."""
    return platformdirs.user_config_path(APP_NAME, appauthor=False) / "config.yaml"


def data_dir(chosen: str | None = None) -> Path:
    """Chats and the single-instance lock: `OCTAVO_DATA_DIR`, else the folder that app.data_folder names."""
    moved = os.environ.get("OCTAVO_DATA_DIR") or chosen
    return Path(moved).expanduser().absolute() if moved else platformdirs.user_data_path(APP_NAME, appauthor=False)


def cache_dir() -> Path:
    """What can be fetched again: the unpacked starter model, temporary files of the page."""
    return platformdirs.user_cache_path(APP_NAME, appauthor=False)


def log_dir() -> Path:
    """The rotating log file."""
    return platformdirs.user_log_path(APP_NAME, appauthor=False)
