"""Words and marks stand out from their ground in both themes, by the formula of WCAG 2.2 (relative luminance)."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

TEXT, MARK = 4.5, 3.0  # success criteria 1.4.3 and 1.4.11
GROUNDS = ("paper", "raised", "lifted")
SYNTAX = ("syntax-word", "syntax-name", "syntax-text", "syntax-number", "syntax-aside")

PAIRS = [
    *((ink, ground, TEXT) for ink in ("ink", "muted", "accent", "danger") for ground in GROUNDS),
    *((ink, "code-ground", TEXT) for ink in ("ink", "muted", "ok", "danger", *SYNTAX)),
    ("accent-ink", "accent", TEXT),
    ("paper", "danger", TEXT),  # the button that deletes
    ("paper", "ink", TEXT),  # the button that stops
    ("ink", "selection", TEXT),
    ("muted", "border", MARK),  # the send button while there is nothing to send
    *((mark, ground, MARK) for mark in ("strong-border", "accent", "ok") for ground in GROUNDS),
    ("accent", "accent-wash", TEXT),
]


def style(name: str) -> str:
    return files("octavo.assets").joinpath(name).read_text(encoding="utf-8")


def tokens(theme: str) -> dict[str, str]:
    """The colours of a theme: those of the light one, replaced where the dark one has its own."""
    found: dict[str, str] = {}
    for sheet in ("tokens.css", "text.css"):
        for selector, body in re.findall(r"(:root[^{}]*)\{([^{}]*)\}", style(sheet)):
            if selector.strip() == ":root" or (theme == "dark" and "dark" in selector):
                found.update(re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]{6})\b", body))
    return found


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_the_formula_is_the_standard_s() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground", "least"), PAIRS)
def test_it_can_be_read(theme: str, ink: str, ground: str, least: float) -> None:
    colours = tokens(theme)
    found = contrast(colours[ink], colours[ground])
    assert found >= least, f"{ink} on {ground} in the {theme} theme has {found:.2f}:1"


def test_the_chosen_dark_theme_is_the_system_s() -> None:
    """The dark colours are written twice: for the system's wish and for the reader's."""
    for sheet in ("tokens.css", "text.css"):
        blocks = [body for selector, body in re.findall(r"(:root[^{}]*)\{([^{}]*)\}", style(sheet)) if "=" in selector]
        by_system, by_choice = (re.findall(r"--[\w-]+:[^;]+;", body) for body in blocks)
        assert by_system == by_choice
