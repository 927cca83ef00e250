"""A process of engine/compiling.py: takes tasks from its standard input and answers on its standard output, in pickles.

A Recipe is answered with (CompileJob, graphs begun) for each launch that its rehearsal finds, then None; a CompileJob
with None. Where something goes wrong the answer is a sentence. The process ends with its input.
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from octavo.kernels.compile_jobs import CompileJob, compile_job

NICENESS = 5  # whoever loads the weights meanwhile, and the desktop, come first


def answer(task: Any, out: BinaryIO) -> None:
    """Does one task."""
    failure: str | None = None
    try:
        if isinstance(task, CompileJob):
            compile_job(task)
        else:
            from octavo.engine.rehearsal import rehearse

            left_out = rehearse(task, lambda job, begun: _send((job, begun), out))
            failure = "; ".join(left_out) or None
    except Exception as error:  # whatever Triton or a model's code raises is for the log of the process that asked
        failure = f"{type(error).__name__}: {str(error).strip()[-400:]}"
    _send(failure, out)


def _send(message: object, out: BinaryIO) -> None:
    pickle.dump(message, out)
    out.flush()


def main() -> None:
    """Works until there is no more input."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what a library prints must not get in between
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        with suppress(EOFError, BrokenPipeError):
            while True:
                answer(pickle.load(sys.stdin.buffer), out)


if __name__ == "__main__":
    main()
