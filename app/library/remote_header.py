"""The header of a GGUF file that is still on the hub: as many of its first bytes as it takes, by range requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.app.library.errors import LibraryError
from octavo.app.library.refusals import plain_errors
from octavo.app.library.repository import RemoteFile

if TYPE_CHECKING:
    from octavo.engine.load.checkpoint import Checkpoint
    from octavo.engine.load.gguf_file import GGUFFile

FIRST_BYTES = 1 << 20
MOST_BYTES = 96 << 20  # a vocabulary of 260,000 tokens with its merges takes about 16 MiB
ANSWER_S = 20.0


def read_remote_checkpoint(repo_id: str, commit: str, files: Sequence[RemoteFile]) -> Checkpoint:
    """A checkpoint of which there are only the headers: its configuration and what its tensors are.

    Raises LibraryError's kinds, CheckpointError and UnsupportedModelError.
    """
    from octavo.engine.load.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(Path(files[0].name), [_read_header(repo_id, commit, file) for file in files])


def _read_header(repo_id: str, commit: str, file: RemoteFile) -> GGUFFile:
    from octavo.engine.load.gguf_file import read_gguf_beginning

    beginning = b""
    wanted = FIRST_BYTES
    while len(beginning) < file.size and len(beginning) < MOST_BYTES:
        with plain_errors(repo_id, commit):
            beginning += _range(repo_id, commit, file, len(beginning), min(wanted, file.size))
        header = read_gguf_beginning(file.name, beginning, file.size)
        if header is not None:
            return header
        wanted *= 4
    raise LibraryError(f"The header of {file.name} of {repo_id} cannot be read.", remedy="Choose another file.")


def _range(repo_id: str, commit: str, file: RemoteFile, start: int, end: int) -> bytes:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
    url = hf_hub_url(repo_id, file.name, revision=commit)
    with get_session().stream("GET", url, headers=headers, timeout=ANSWER_S) as response:
        hf_raise_for_status(response)
        skipped = 0 if response.status_code == 206 else start  # a server without ranges sends all of it
        data = bytearray()
        for block in response.iter_bytes():
            data += block
            if len(data) >= end - start + skipped:
                break
    return bytes(data[skipped : skipped + end - start])
