"""The tokenizer of a Hugging Face folder, from its own files alone."""

from __future__ import annotations

import codecs
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.engine.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "config.json",
)
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def load_folder_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """AutoTokenizer without network and without the folder's code; CheckpointError if its files do not make one."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise CheckpointError(
            f"{folder} has no tokenizer (neither tokenizer.json nor tokenizer.model).",
            file=str(folder / "tokenizer.json"),
            remedy="Fetch the whole repository of the model, not only its weights.",
        )
    with _without_byte_order_marks(folder) as readable:
        try:
            return AutoTokenizer.from_pretrained(str(readable), trust_remote_code=False, local_files_only=True)
        except Exception as error:  # transformers and tokenizers raise whatever the broken part runs into
            first_line = next(iter(str(error).splitlines()), type(error).__name__)
            if "trust_remote_code" in str(error):
                raise UnsupportedModelError(
                    f"The tokenizer of {folder.name} needs code from its folder, which is never run.",
                    remedy="Use a version of the model that transformers knows itself.",
                ) from error
            _blame_config(readable, folder)
            raise CheckpointError(
                f"The tokenizer of {folder.name} cannot be read ({first_line}).",
                file=str(folder),
                remedy="Fetch its tokenizer files again.",
            ) from error


def _blame_config(readable: Path, folder: Path) -> None:
    """Raises CheckpointError if it is config.json, read to choose the tokenizer's class, that transformers refuses."""
    from transformers import AutoConfig

    if not (readable / "config.json").is_file():
        return
    try:
        AutoConfig.from_pretrained(str(readable), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        if "model_type" in first_line:  # a family transformers does not know: then the tokenizer had to say its class
            return
        raise CheckpointError(
            f"The config.json of {folder.name} is not one that transformers accepts ({first_line}).",
            file=str(folder / "config.json"),
            remedy="Correct it, or fetch it again.",
        ) from error


@contextmanager
def _without_byte_order_marks(folder: Path) -> Iterator[Path]:
    """The folder itself, or a copy of its tokenizer files for the call if one begins with a UTF-8 byte order mark."""
    present = [folder / name for name in (*_FILES, *_TEMPLATES) if (folder / name).is_file()]
    if not any(_marked(path) for path in present):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="octavo-tokenizer-") as name:
        copy = Path(name)
        for path in present:
            if _marked(path):
                (copy / path.name).write_bytes(path.read_bytes()[len(codecs.BOM_UTF8) :])
            else:
                shutil.copyfile(path, copy / path.name)
        yield copy


def _marked(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(3) == codecs.BOM_UTF8
