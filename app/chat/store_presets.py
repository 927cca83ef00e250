"""Presets: a system text and sampling values under a name, for any chat."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping

from octavo.app.chat.store_file import StoreError, StoreFile
from octavo.app.chat.store_rows import new_id
from octavo.app.chat.types import Preset


class PresetStore:
    """The presets in a file of chats. A name is there once: StoreError for a second one."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file

    def list(self) -> list[Preset]:
        """All of them, by name."""
        with self._file.reading() as db:
            return [_to_preset(row) for row in db.execute("SELECT * FROM presets ORDER BY name COLLATE NOCASE")]

    def get(self, preset_id: str) -> Preset | None:
        with self._file.reading() as db:
            row = db.execute("SELECT * FROM presets WHERE id = ?", (preset_id,)).fetchone()
        return None if row is None else _to_preset(row)

    def create(self, name: str, system: str = "", sampling: Mapping[str, object] | None = None) -> Preset:
        preset = Preset(new_id(), name.strip(), system, dict(sampling or {}))
        with self._file.writing() as db:
            _check_name(db, preset)
            db.execute(
                "INSERT INTO presets (id, name, system, sampling, created_s) VALUES (?, ?, ?, ?, ?)",
                (preset.id, preset.name, system, json.dumps(preset.sampling), time.time()),
            )
        return preset

    def update(self, preset: Preset) -> bool:
        """Replace what the preset of this id says; False if there is none (any more)."""
        with self._file.writing() as db:
            _check_name(db, preset)
            done = db.execute(
                "UPDATE presets SET name = ?, system = ?, sampling = ? WHERE id = ?",
                (preset.name.strip(), preset.system, json.dumps(dict(preset.sampling)), preset.id),
            )
            return done.rowcount > 0

    def delete(self, preset_id: str) -> bool:
        with self._file.writing() as db:
            return db.execute("DELETE FROM presets WHERE id = ?", (preset_id,)).rowcount > 0


def _check_name(db: sqlite3.Connection, preset: Preset) -> None:
    name = preset.name.strip()
    if not name:
        raise StoreError("A preset needs a name.", remedy="Give it one.")
    if db.execute("SELECT 1 FROM presets WHERE name = ? AND id != ?", (name, preset.id)).fetchone():
        raise StoreError(f"There is a preset named {name!r} already.", remedy="Choose another name.")


def _to_preset(row: sqlite3.Row) -> Preset:
    return Preset(row["id"], row["name"], row["system"], json.loads(row["sampling"]))
