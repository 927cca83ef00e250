"""Errors are sentences that any encoding can carry."""

from __future__ import annotations

from octavo.engine.errors import CheckpointError


def test_half_characters_quoted_from_a_file_are_replaced() -> None:
    error = CheckpointError("tensor \ud800 is unknown.", remedy="Fetch \udfff again.")
    assert str(error).encode("utf-8") == b"tensor ? is unknown. Fetch ? again."
