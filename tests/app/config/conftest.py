"""Writing a config.yaml and reading it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.app.config import ConfigError, Settings, load_settings

Load = Callable[..., Settings]


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.fixture
def load(config_path: Path) -> Load:
    """Loads settings from text or bytes, with the environment and flags given; nothing of the real environment."""

    def load_text(text: str | bytes = "", environment: dict[str, str] | None = None, **flags: object) -> Settings:
        config_path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        overrides = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(config_path, overrides, environment=environment or {})

    return load_text


@pytest.fixture
def complaint(load: Load) -> Callable[..., str]:
    """What loading this text says is wrong with it, without the file's name."""

    def complain(text: str | bytes = "", environment: dict[str, str] | None = None, **flags: object) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, environment, **flags)
        assert caught.value.problems
        return str(caught.value).replace(f"{caught.value.path} ", "").replace(f"{caught.value.path}: ", "")

    return complain
