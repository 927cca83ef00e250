"""An idle page costs nothing."""

from __future__ import annotations

import gradio
import pytest
from fastapi import FastAPI

from octavo.app.ui import page


def test_gradios_queue_is_not_looked_into_a_thousand_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[gradio.Blocks] = []
    build = page.build_blocks
    monkeypatch.setattr(page, "build_blocks", lambda: seen.append(build()) or seen[-1])
    monkeypatch.setattr(page, "add_live_route", lambda *_: None)
    monkeypatch.setattr(page, "_add_files", lambda *_: None)
    page.mount_page(FastAPI(), None, None, None)  # type: ignore[arg-type]
    assert seen[0]._queue.sleep_when_free >= 1.0
