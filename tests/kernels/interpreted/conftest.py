"""Collected only in the process that test_interpreted.py starts: Triton reads the choice when it is imported."""

import dataclasses
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def the_same_numbers_every_time() -> None:
    torch.manual_seed(5)


@pytest.fixture(autouse=True, scope="session")
def no_work_for_nothing() -> None:
    """Most of an interpreted test's time, saved: Triton computes with every sum and product of integers whether it
    overflows, for an assertion that is off, puts its language's functions in place at every call of a device function,
    not once a launch, and describes the shape and the type of every number anew."""
    from triton import language as tl
    from triton.runtime import interpreter

    _describe_once(tl, interpreter)
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


def _describe_once(tl: Any, interpreter: Any) -> None:
    """What a tensor and its type hold beside their own numbers is the same for all of a shape: it is kept from the
    first, which Triton has checked, and shared with the next."""
    shapes: dict[tuple[object, ...], tuple[object, ...]] = {}
    parts: dict[tuple[object, ...], tuple[object, ...]] = {}
    numpy_types: dict[str, object] = {}
    type_init, tensor_init, equals = tl.block_type.__init__, tl.tensor.__init__, tl.core.tuple.__eq__
    numpy_type, broadcast = interpreter._get_np_dtype, tl.semantic.TritonSemantic.broadcast_impl_value

    def make_type(self, element_ty, shape):
        key = tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
        if key in shapes:
            self.element_ty = element_ty
            self.shape, self.numel, text = shapes[key]
            self.name = f"<{text}, {element_ty}>"
        else:
            type_init(self, element_ty, shape)
            shapes[key] = self.shape, self.numel, str(self.shape)

    def make_tensor(self, handle, type):
        key = tuple(type.shape) if type.is_block() else ()
        if key in parts:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = parts[key]
        else:
            tensor_init(self, handle, type)
            parts[key] = self.shape, self.numel

    def is_same(self, other):
        values = other.values if isinstance(other, tl.core.tuple) else other
        if isinstance(values, list) and all(type(value) is int for value in values):
            return tl.constexpr(self.values == values)
        return equals(self, other)

    def broadcast_unless_alike(self, left, right):
        return (left, right) if left.shape is right.shape else broadcast(self, left, right)

    def numpy_type_of(type):
        name = type.scalar.name
        if name not in numpy_types:
            numpy_types[name] = numpy_type(type)
        return numpy_types[name]

    tl.block_type.__init__, tl.tensor.__init__, tl.core.tuple.__eq__ = make_type, make_tensor, is_same
    tl.semantic.TritonSemantic.broadcast_impl_value = broadcast_unless_alike
    interpreter._get_np_dtype = numpy_type_of
