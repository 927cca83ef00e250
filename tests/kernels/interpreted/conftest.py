"""Collected only in the process that test_interpreted.py starts: Triton reads the choice when it is imported."""

import dataclasses
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def the_same_numbers_every_time() -> None:
    torch.manual_seed(5)


@pytest.fixture(autouse=True, scope="session")
def no_work_for_nothing() -> None:
    """More than half of an interpreted test's time, saved: Triton computes with every sum and product of integers
    whether it overflows, for an assertion that is off, and puts its language's functions in place at every call of a
    device function, not once a launch."""
    from triton import language as tl
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    in_place: set[int] = set()
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__

    def patch_once(fn):
        modules = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if modules and modules <= in_place:
            return None  # of a device function, which keeps nothing to restore
        in_place.update(modules)
        return patch(fn)

    def begin_anew(self, *args, **kwargs):
        in_place.clear()
        return launch(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, begin_anew
