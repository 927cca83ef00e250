"""The facts for a report of a fault: what runs, how it is set, what it has done. No text of any chat."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.app.config import format_size
from octavo.app.config.form import forms
from octavo.app.monitor.lines import Line

PATIENCE_S = 2.0
LINES_IN_REPORT = 60


def facts_of(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(subject, fact) pairs of a picture as /api/status gives it."""
    model, pages, counters = status["model"], status["pages"], status["counters"]
    yield "state", str(status["state"])
    if model.get("name"):
        sizes = f"weights {format_size(model['weight_bytes'])}, a full chat {format_size(model['chat_bytes'])}"
        sizes += f", all chats up to {format_size(model['kv_bytes'])}"
        if model.get("kv_dtype"):
            sizes += f" in {model['kv_dtype']}"
        what = f"{model['name']}, {model['architecture']}, {model['format']} on {model['device']}"
        yield "model", f"{what}, context {model['context_length']}, {sizes}"
    elif model.get("id"):
        yield "model", str(model["id"])
    if model.get("error"):
        yield "error", str(model["error"])
    for notice in model.get("notices", ()):
        yield "notice", str(notice)
    chosen = {f"model.{name}": value for name, value in model.get("chosen", {}).items()}
    changed = [f"{key}={value}" for key, value in changed_settings(status["settings"]) if key not in chosen]
    changed += [f"{key}={value} (for this run)" for key, value in chosen.items()]
    yield "settings", ", ".join(changed) or "all at their defaults"
    counts = ", ".join(f"{pages[name]} {name}" for name in ("used", "shared", "cached", "free"))
    yield "pages", f"{pages['total']} of {pages['page_size']} tokens: {counts}"
    requests = ", ".join(f"{count} {name}" for name, count in status["requests"].items())
    yield "requests", requests
    yield "counters", ", ".join(f"{name} {count}" for name, count in counters.items())
    totals = status.get("totals", {})
    if any(totals.get(name, count) != count for name, count in counters.items()):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(totals["since_s"]))
        yield "totals", f"since {since}: " + ", ".join(f"{name} {totals[name]}" for name in counters)
    if counters["prompt_tokens"]:
        share = counters["cached_prompt_tokens"] / counters["prompt_tokens"]
        yield "prefix", f"{share:.0%} of prompt tokens were cached"
    if counters["draft_tokens"]:
        share = counters["accepted_tokens"] / counters["draft_tokens"]
        yield "drafts", f"{share:.0%} of guessed tokens were right"


def changed_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys that are not at their default, as they may be shown. The engine's own settings stand among the sections
    and may go by a section's name."""
    for key, form in forms().items():
        section, name = key.split(".")
        values = settings.get(section)
        value = values.get(name, form.default) if isinstance(values, dict) else form.default
        if value != form.default:
            yield key, str(value)


def fetch_status(url: str) -> dict[str, Any] | None:
    """What a running Octavo on this machine says at /api/status; None if it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/status", timeout=PATIENCE_S) as answer:
            found = json.load(answer)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def report(findings: Iterable[object], status: Mapping[str, Any], lines: Iterable[Line]) -> str:
    """All of it as one text to be copied. Traces are given without what the errors said, and the home folder as ~."""
    parts = [str(finding) for finding in findings]
    parts += [f"       {subject:<12}  {text}" for subject, text in facts_of(status)]
    kept = list(lines)[-LINES_IN_REPORT:]
    if kept:
        parts.append("")
    for line in kept:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at_s))
        parts.append(f"{at} {line.level} {line.source}: {line.text}")
        parts += [f"    {frame}" for frame in line.frames.splitlines()]
    return "\n".join(parts).replace(str(Path.home()), "~") + "\n"
