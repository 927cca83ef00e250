"""What config.yaml says and what is not in force yet: it waits for a reload of the model or a restart of the app."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.app.config import Config, ConfigError, Settings, changed_keys
from octavo.app.host import ModelHost
from octavo.app.ui.board import Board

TOPIC = "settings"


@dataclass(frozen=True, slots=True)
class Pending:
    """Keys whose values wait for a reload or a restart, and what is wrong with the file now."""

    reload: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    error: str | None = None


class PendingWatch:
    """Keeps the board's "settings" true: after every change of the file, and whenever a model has come or gone."""

    def __init__(self, settings: Settings, host: ModelHost, board: Board) -> None:
        self._settings = settings
        self._host = host
        self._board = board
        self._started_with = settings.values
        settings.listen(lambda _: self.tell())
        host.add_listener(self.tell)
        self.tell()

    def now(self) -> Pending:
        return Pending(
            self._differing("model reload", self._host.config),
            self._differing("restart", self._started_with),
            describe(self._settings.error),
        )

    def tell(self) -> None:
        now = self.now()
        value = {"reload": list(now.reload), "restart": list(now.restart), "error": now.error}
        values = self._settings.values
        self._board.put(TOPIC, value | {"theme": values.app.theme, "language": values.app.language})

    def _differing(self, when: str, running: Config | None) -> tuple[str, ...]:
        if running is None:  # whatever is loaded next is loaded as the file says
            return ()
        changes = changed_keys(running, self._settings.values)
        chosen = {f"model.{name}" for name in self._host.chosen}  # for this run, on the page
        return tuple(key for key, applies in changes.items() if applies == when and key not in chosen)


def describe(error: ConfigError | None) -> str | None:
    """Every fault of the file on a line of its own, without the file's name before each."""
    if error is None:
        return None
    return "\n".join(str(problem).removeprefix(f"{problem.where} ").removeprefix(": ") for problem in error.problems)
