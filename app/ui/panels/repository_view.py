"""A repository of the hub as the models panel shows it: its loadable variants, their sizes, and how they would fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.app.library import AccessError, ModelNotFoundError, hub
from octavo.app.library.cache import find_cached
from octavo.app.library.fit import Sketch
from octavo.app.library.hub import FetchPlan, Repository
from octavo.app.library.repository import first_parts, gguf_files, needed_files, parts_of, variants
from octavo.app.library.sketches import Sketches
from octavo.engine.errors import OctavoError

SHORT_CHAT = 2048  # tokens: with less room than this the model is called too large
Judge = Callable[[Sketch], dict[str, Any]]


def describe_repository(repo_id: str, revision: str, sketches: Sketches, judge: Judge) -> dict[str, Any]:
    """Raises ModelNotFoundError with the one reason why nothing of it can be loaded, and LibraryError's other kinds."""
    found = hub.look_up(repo_id, revision)
    choices = _choices(found)
    fit: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    try:
        smallest = min(choices, key=lambda choice: choice["size"])
        fit = judge(sketches.of_repository(repo_id, smallest["variant"], revision))
    except OctavoError as error:
        reason = error.reason if isinstance(error, AccessError) else None
        problem = {"message": str(error), "reason": reason}
    for choice in choices:
        choice["verdict"] = _verdict(choice, fit)
    return {
        "id": found.id,
        "gated": found.gated,
        "license": found.license,
        "page": f"{_endpoint()}/{found.id}",
        "choices": choices,
        "fit": fit,
        "problem": problem,
    }


def _verdict(choice: dict[str, Any], judged: dict[str, Any] | None) -> str | None:
    """Whether a GGUF file fits as it is stored: whole, with a shorter context, or not at all. None: not known."""
    if judged is None or choice["variant"] is None:
        return None
    fit = judged["fit"]
    room = fit["available_bytes"] - fit["workspace_bytes"] - choice["size"]
    if room >= fit["kv_bytes"]:
        return "fits"
    shortest = fit["kv_bytes"] * SHORT_CHAT // max(SHORT_CHAT, fit["context_length"])
    return "shorter" if room >= shortest else "no"


def _choices(found: Repository) -> list[dict[str, Any]]:
    top = {file.name: file for file in found.files}
    gguf = first_parts(gguf_files(name for name in top if "/" not in name))
    plans: list[tuple[str | None, list[Any]]] = []
    if any(name.endswith(".safetensors") for name in top if "/" not in name) or not gguf:
        plans.append((None, needed_files(found.id, found.files)))
    for first in gguf:
        plans.append((variants([first])[0], [top[name] for name in parts_of(first, top)]))
    rows = []
    for variant, files in plans:
        plan = FetchPlan(found.id, variant, found.commit, found.commit, tuple(files), None)
        rows.append(
            {
                "id": f"{found.id}:{variant}" if variant else found.id,
                "variant": variant,
                "size": plan.total_bytes,
                "there": plan.there_bytes(),
                "complete": find_cached(found.id, variant, found.commit) is not None,
            }
        )
    if not rows:
        raise ModelNotFoundError(f"{found.id} has no safetensors or GGUF weights.", remedy="Choose another model.")
    return sorted(rows, key=lambda row: row["size"])


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)
