"""Reading files whose format can be turned against the reader: in a process of its own, which may fail alone."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading

from octavo.app.chat.attachments.types import AttachmentError, Kind, ReadFile, remark

log = logging.getLogger(__name__)

LONGEST_S = 30.0
AT_ONCE = threading.BoundedSemaphore(2)  # each may take a core and a gigabyte


def read_apart(name: str, kind: Kind, data: bytes, *, longest_s: float = LONGEST_S) -> ReadFile:
    """What `worker` makes of the file. Raises AttachmentError, also where the worker dies or takes too long."""
    command = [sys.executable, "-P", "-m", "octavo.app.chat.attachments.worker", kind]
    try:
        with AT_ONCE:
            done = subprocess.run(
                command,
                input=data,
                capture_output=True,
                timeout=longest_s,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise AttachmentError("slow", name=name, seconds=round(longest_s)) from None
    try:
        answer = json.loads(done.stdout.decode("utf-8"))
    except ValueError:
        log.warning("Reading a %s file failed (exit %s): %s", kind, done.returncode, done.stderr[-2000:])
        raise AttachmentError("damaged", name=name) from None
    if "refused" in answer:
        raise AttachmentError(answer["refused"], name=name, **answer["values"])
    remarks = tuple(remark(code, name=name, **values) for code, values in answer["remarks"])
    return ReadFile(name, kind, answer["text"], remarks)
