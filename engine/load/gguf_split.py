"""A model split over several GGUF files: `name-00001-of-00003.gguf`, each part with a header of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from octavo.engine.errors import CheckpointError
from octavo.engine.load.gguf_file import GGUFFile, read_gguf

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def first_parts(files: Sequence[Path]) -> list[Path]:
    """The files that are whole models or the lowest part of a split that is there."""
    models: dict[tuple[str, str] | str, Path] = {}
    for file in sorted(files):
        match = _PART.fullmatch(file.name)
        models.setdefault((match["stem"], match["count"]) if match else file.name, file)
    return list(models.values())


def read_parts(path: Path) -> list[GGUFFile]:
    """Headers of all parts in order, whichever part `path` is; CheckpointError names a part that is missing or odd."""
    chosen = read_gguf(path)
    count = chosen.metadata.get("split.count", 0)
    if not isinstance(count, int) or count < 2:
        return [chosen]
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path.name} is one of {count} parts of a model, and its name does not say which.",
            file=str(path),
            remedy=f"Give the parts their names again: NAME-00001-of-{count:05}.gguf and so on.",
        )
    paths = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path.name} is one of {count} parts; missing: {', '.join(missing)}.",
            file=str(path.with_name(missing[0])),
            remedy=f"Fetch what is missing into {path.parent}.",
        )
    parts = [chosen if part == path else read_gguf(part) for part in paths]
    for index, part in enumerate(parts):
        number, of = part.metadata.get("split.no"), part.metadata.get("split.count")
        if number != index or of != count:
            raise CheckpointError(
                f"{part.path.name} says it is part {number} of {of}, expected {index} of {count}.",
                file=str(part.path),
                remedy="The parts belong to different models; fetch them again.",
            )
    total = parts[0].metadata.get("split.tensors.count")
    found = sum(len(part.tensors) for part in parts)
    if isinstance(total, int) and total != found:
        raise CheckpointError(
            f"The {count} parts of {path.name} hold {found} tensors, expected {total}.",
            file=str(path),
            remedy="A part is of another model; fetch the parts again.",
        )
    return parts
