"""Looking for models on the hub. The only words that leave the machine are the ones somebody searched for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from octavo.app.library.hub import HUB, probe
from octavo.app.library.refusals import plain_errors

Kind = Literal["any", "safetensors", "gguf"]

MOST_RESULTS = 40
_ASKED = ("downloads", "likes", "gated", "tags", "pipeline_tag", "safetensors", "gguf", "lastModified", "cardData")
# Tasks of models that write text; a repository that names none is shown too.
_TASKS = frozenset({"text-generation", "text2text-generation", "image-text-to-text", "any-to-any", "conversational"})


@dataclass(frozen=True, slots=True)
class Found:
    """A repository a search found. `parameters` is 0 where the hub does not say."""

    id: str
    kind: Literal["safetensors", "gguf"]
    parameters: int
    downloads: int
    likes: int
    gated: bool
    license: str | None
    architecture: str | None
    context_length: int | None


def search(words: str, kind: Kind = "any") -> list[Found]:
    """Models with weights Octavo reads whose names match `words`, the most downloaded first.

    Raises OfflineError, AccessError for a token the hub refuses, or DownloadError.
    """
    from huggingface_hub import HfApi

    probe("Models on this disk are listed without it.")
    wanted = {"any": None, "safetensors": "safetensors", "gguf": "gguf"}[kind]
    with plain_errors(HUB):
        infos = list(
            HfApi().list_models(
                search=_wanted(words) or None,
                filter=wanted,
                sort="downloads",
                limit=MOST_RESULTS,
                expand=list(_ASKED),  # type: ignore[arg-type]
            )
        )
    return [found for info in infos if (found := _found(info)) is not None]


def _wanted(words: str) -> str:
    """What to search for: the words, or the name in a page's address that was pasted."""
    address = re.fullmatch(r"https?://[^/\s]+/([^/\s]+/[^/\s?#]+).*", words.strip())
    return address[1] if address else words.strip()


def _found(info: Any) -> Found | None:
    tags = set(info.tags or ())
    kind: Literal["safetensors", "gguf"] | None = None
    if "gguf" in tags:
        kind = "gguf"
    elif "safetensors" in tags or getattr(info, "safetensors", None):
        kind = "safetensors"
    if kind is None or (info.pipeline_tag and info.pipeline_tag not in _TASKS):
        return None
    gguf = getattr(info, "gguf", None) or {}
    stored = getattr(info, "safetensors", None)
    card = getattr(info, "card_data", None)
    return Found(
        id=info.id,
        kind=kind,
        parameters=_whole(gguf.get("total") if kind == "gguf" else getattr(stored, "total", 0)),
        downloads=_whole(info.downloads),
        likes=_whole(info.likes),
        gated=bool(info.gated),
        license=str(name) if (name := getattr(card, "license", None)) else None,
        architecture=str(gguf["architecture"]) if gguf.get("architecture") else None,
        context_length=_whole(gguf.get("context_length")) or None,
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
