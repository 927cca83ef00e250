"""What is kept of compiled kernels between starts."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.kernels.cpu.compiled import drop_others, source_digest


def test_what_former_versions_left_goes_but_for_the_one_used_last(tmp_path: Path) -> None:
    for age, name in enumerate([source_digest(), "b" * 16, "0123456789abcdef", "c" * 16, "notes", "d" * 15]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.nbc").touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "e").touch()
    drop_others(tmp_path)
    assert {place.name for place in tmp_path.iterdir()} == {source_digest(), "b" * 16, "notes", "d" * 15, "e"}
    assert (tmp_path / source_digest()).stat().st_mtime > 1000  # used now
    drop_others(tmp_path / "nowhere")
