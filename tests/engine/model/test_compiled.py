"""What becomes of decode steps where the compiled kernels cannot be read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.engine.model import compiled
from octavo.kernels.cpu.compiled import is_kept, source_digest


@pytest.mark.parametrize("error", [EOFError("Ran out of input"), ValueError("not a pickle"), PermissionError("no")])
def test_a_damaged_folder_of_kernels_costs_one_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    kept = tmp_path / source_digest() / "cpu" / "entry.nbc"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"cut")

    def made(*_: object) -> None: ...

    def compile_entry(kind: str, folder: Path | None = None) -> Callable[..., None]:
        if folder is not None:
            raise error
        return made

    monkeypatch.setenv("OCTAVO_KERNEL_FOLDER", str(tmp_path))
    monkeypatch.setattr(compiled, "compile_entry", compile_entry)
    entry = compiled.Entry("bfloat16")
    assert entry.wait()
    assert entry.function is made
    assert not is_kept(tmp_path), "the next start must not read it again"
