"""The process that reads one file: bytes on standard input, a JSON object on standard output.

`python -m octavo.app.chat.attachments.worker pdf|docx`. Limits its own memory where the system can.
"""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import import_module
from io import BytesIO

LARGEST_MEMORY_BYTES = 1024 * 1024 * 1024
READERS = {"pdf": "octavo.app.chat.attachments.pdf", "docx": "octavo.app.chat.attachments.docx"}


def main(kind: str) -> None:
    _limit_memory()
    data = sys.stdin.buffer.read()
    module = import_module(READERS[kind])
    try:
        text, remarks = module.read(BytesIO(data))
        answer: dict[str, object] = {"text": _storable(text), "remarks": remarks}
    except module.Refused as refused:
        answer = {"refused": refused.code, "values": refused.values}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def _storable(text: str) -> str:
    return text.replace("\x00", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY_BYTES, LARGEST_MEMORY_BYTES))


if __name__ == "__main__":
    main(sys.argv[1])
