"""What an unfinished run was asked for, as it is kept in state.json, and how that differs from what is asked now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.engine.quant.calibrate.settings import Settings

# by name: what tells two wishes apart, and how it is shown; nothing is shown of what follows from others
Asked = dict[str, list[Any]]


def describe_settings(settings: Settings) -> Asked:
    """The flags of resolved settings that change what is written."""
    shown: dict[str, Any] = {
        "--method": settings.method,
        "--bits": settings.bits,
        "--group-size": settings.group,
        "--symmetric": "on" if settings.symmetric else "off",
        "--format": settings.file_format,
    }
    if settings.method == "gptq":
        shown["--act-order"] = "on" if settings.act_order else "off"
    if settings.method == "smoothquant":
        shown["--alpha"] = settings.alpha
    return {name: [value, str(value)] for name, value in shown.items()}


def differences(before: Mapping[str, Any], now: Asked) -> list[str]:
    """One clause for each thing that both know and that differs, with both values."""
    clauses = []
    for name, (value, shown) in now.items():
        known = before.get(name)
        if not isinstance(known, list) or len(known) != 2 or known[0] == value or not shown:
            continue
        if known[1] == shown:
            clauses.append(f"what {name} ({shown}) holds has changed")
        else:
            clauses.append(f"{name} was {known[1]} and is {shown}")
    return clauses
