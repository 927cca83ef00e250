"""What a panel's routes may use."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.app.chat.service import ChatService
from octavo.app.chat.store import ChatStore
from octavo.app.config import Settings
from octavo.app.host import ModelHost
from octavo.app.monitor.sampler import Sampler
from octavo.app.ui.board import Board


@dataclass(frozen=True, slots=True)
class PanelDeps:
    """The parts of the one running app. `board` carries news to every tab: `page.on(name, callback)` hears them."""

    service: ChatService
    host: ModelHost
    store: ChatStore
    settings: Settings
    board: Board = field(default_factory=Board)
    sampler: Sampler | None = None
