"""The estimate in words, for the command line: as asked, and what each other format would take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.app.config.sizes import format_size
from octavo.app.library import hub
from octavo.app.library.errors import ModelNotFoundError
from octavo.app.library.fit import Fit, Sketch, alternatives, estimate, sketch_path, sketch_repository, wish_of
from octavo.app.library.resolve import resolve_model, split_repository

if TYPE_CHECKING:
    from octavo.app.config import Config

_VERDICTS = {"fits": "fits", "shorter": "fits with a shorter context", "no": "does not fit"}


def fit_report(model_id: str, config: Config, context_length: int | None = None) -> str:
    """What a model needs, on disk or on the hub, which is then asked. Raises LibraryError and the engine's errors."""
    sketch, wish = _sketch(model_id, config), wish_of(config)
    if context_length is not None:
        wish = replace(wish, context_length=context_length)
    fit = estimate(sketch, wish)
    others = [other for other in alternatives(sketch, wish) if other.quantization != fit.quantization]
    lines = [fit.sentence(), fit.table()]
    if others:
        lines.append("With another model.quantization:")
    return "\n".join([*lines, *(_line(other) for other in others)])


def _sketch(model_id: str, config: Config) -> Sketch:
    model = config.model
    try:
        path = resolve_model(model_id, folders=model.folders, revision=model.revision, may_fetch=False)
    except ModelNotFoundError:
        found = split_repository(model_id)
        if found is None:
            raise
        hub.probe(f"{model_id} is not on disk.")
        return sketch_repository(*found, model.revision)
    return sketch_path(path)


def _line(fit: Fit) -> str:
    return f"{fit.quantization:<16} {format_size(fit.total_bytes):>10} {_VERDICTS[fit.verdict]}"
