"""A change of config.yaml is noticed; a wrong one keeps the last good settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from octavo.app.config import ConfigError, ConfigWatcher, Settings, changed_keys

Load = Callable[..., Settings]


def write(path: Path, text: str) -> None:
    """Writes with a new time, however coarse the file system's clock is."""
    before = path.stat().st_mtime_ns
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_change_is_handed_on_with_its_keys_and_when_they_take_effect(load: Load, config_path: Path) -> None:
    seen: list[dict[str, str]] = []
    settings = load("app: {theme: dark}")
    watcher = ConfigWatcher(settings, on_change=seen.append)
    assert watcher.poll() is False
    write(config_path, "app: {theme: light}\nserver: {port: 9}\nengine: {fusion: false}\nsampling: {seed: 1}\n")
    assert watcher.poll() is True
    assert watcher.poll() is False
    assert settings.values.app.theme == "light"
    assert settings.sources["server.port"] == "file"
    assert seen == [
        {
            "engine.fusion": "model reload",
            "sampling.seed": "next request",
            "server.port": "restart",
            "app.theme": "live",
        }
    ]


def test_a_wrong_file_keeps_the_last_good_settings_until_it_is_right_again(load: Load, config_path: Path) -> None:
    errors: list[ConfigError] = []
    changes: list[dict[str, str]] = []
    settings = load("app: {theme: dark}")
    good = settings.values
    watcher = ConfigWatcher(settings, on_change=changes.append, on_error=errors.append)
    for text in ("app: {theme: ture}", "app:\n\ttheme: dark", "- list"):
        write(config_path, text)
        assert watcher.poll() is False
        assert settings.values is good
        assert settings.error is errors[-1]
    assert len(errors) == 3
    write(config_path, "app: {theme: dark}")
    assert watcher.poll() is False
    assert settings.error is None
    assert changes == [{}]  # receivers learn that the complaint is over


def test_flags_still_go_before_a_changed_file(load: Load, config_path: Path) -> None:
    watcher = ConfigWatcher(load("server: {port: 1}", server__port=2))
    write(config_path, "server: {port: 3}")
    assert watcher.poll() is False
    assert watcher.settings.values.server.port == 2


def test_a_deleted_file_means_the_defaults(load: Load, config_path: Path) -> None:
    watcher = ConfigWatcher(load("app: {theme: dark}"))
    config_path.unlink()
    assert watcher.poll() is True
    assert watcher.settings.values.app.theme == "system"


def test_the_thread_survives_a_faulty_receiver_and_ends_when_closed(load: Load, config_path: Path) -> None:
    called = threading.Semaphore(0)

    def faulty(keys: object) -> None:
        called.release()
        raise RuntimeError("receiver")

    watcher = ConfigWatcher(load("server: {port: 1}"), on_change=faulty, interval_s=0.01)
    watcher.start()
    try:
        for port in (2, 3):
            write(config_path, f"server: {{port: {port}}}")
            assert called.acquire(timeout=60)
    finally:
        watcher.close()
    assert watcher.settings.values.server.port == 3
    assert not any(thread.name == "octavo-config" for thread in threading.enumerate())


def test_equal_settings_have_no_changed_keys(load: Load) -> None:
    assert changed_keys(load("").values, load("model: {id: starter}").values) == {}
