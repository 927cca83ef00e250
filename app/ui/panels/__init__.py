"""The panels beside the conversation, in the order of the navigation.

A panel is three files and its words: a module here with `add_routes(app, deps)`, JSON under `/api/ui/<name>/...`;
`assets/panels/<name>.js`, imported when it is first opened, which exports `open(root, page)` and `close()`; its
`assets/panels/<name>.css`; `nav.<name>` in the words, and an icon of its name in `assets/dom.js`.
"""

from __future__ import annotations

from fastapi import FastAPI

from octavo.app.ui import chat_files
from octavo.app.ui.panels import models, monitor, presets, settings
from octavo.app.ui.panels.deps import PanelDeps

PANELS = {"models": models, "presets": presets, "settings": settings, "monitor": monitor}

__all__ = ["PANELS", "PanelDeps", "add_panels"]


def add_panels(app: FastAPI, deps: PanelDeps) -> None:
    """Add the routes of every panel. They take JSON alone and are guarded like the API's."""
    chat_files.add_routes(app, deps)
    for panel in PANELS.values():
        panel.add_routes(app, deps)
