"""Reading files whose format can be turned against the reader: in a process of its own, which may fail alone."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from octavo.app.chat.attachments.types import AttachmentError, Kind, ReadFile

log = logging.getLogger(__name__)

LONGEST_S = 30.0
_NAMES = {"pdf": "PDF", "docx": "Word"}


def read_apart(name: str, kind: Kind, data: bytes, *, longest_s: float = LONGEST_S) -> ReadFile:
    """What `worker` makes of the file. Raises AttachmentError, also where the worker dies or takes too long."""
    command = [sys.executable, "-P", "-m", "octavo.app.chat.attachments.worker", kind]
    try:
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=longest_s,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AttachmentError(
            f"Reading {name} took longer than {longest_s:.0f} seconds and was given up.",
            remedy="Attach fewer pages, or save it as plain text first.",
        ) from None
    try:
        answer = json.loads(done.stdout.decode("utf-8"))
    except ValueError:
        log.warning("Reading a %s file failed (exit %s): %s", kind, done.returncode, done.stderr[-2000:])
        raise AttachmentError(
            f"{name} cannot be read as a {_NAMES[kind]} file; it is damaged or far larger inside than outside.",
            remedy="Save it again with the program it came from, or as plain text.",
        ) from None
    if "error" in answer:
        raise AttachmentError(answer["error"].replace("{name}", name), remedy=answer.get("remedy"))
    return ReadFile(name, kind, answer["text"], tuple(n.replace("{name}", name) for n in answer["notices"]))
