"""Readers for arrays of numpy, memory views and ctypes: objects that show the memory of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..._native import referents
from .look import is_a, literal, module_value, read
from .reference import UNWRITTEN, Reader, Reference, keeps

_WHY = "it shows the memory of another object: drop it, or copy what it shows"


_base: Reader = keeps("memory of", _WHY, "base")


class ItemLayout(NamedTuple):
    """Where an item of an array has objects: its size, and the offset of each object in it."""

    size: int
    objects: list[int]


def item_layout(dtype: Any) -> ItemLayout:
    """Returns where items of a dtype have objects."""
    kind = module_value("numpy", "dtype")
    size = kind.itemsize.__get__(dtype)
    if not kind.hasobject.__get__(dtype):
        return ItemLayout(size, [])
    parts = kind.subdtype.__get__(dtype)
    if parts is not None:
        part, shape = item_layout(parts[0]), parts[1]
        count = math.prod(shape)
        objects = [number * part.size + at for number in range(count) for at in part.objects]
        return ItemLayout(size, objects)
    fields = kind.fields.__get__(dtype)
    if fields is None:
        return ItemLayout(size, [0])
    inside = [(field[1], item_layout(field[0])) for field in fields.values()]
    # A field may have a title, under which it stands a second time.
    objects = sorted({begin + at for begin, part in inside for at in part.objects})
    return ItemLayout(size, objects)


def read_array(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the base of an array, and the elements of an array of objects or structures."""
    array = module_value("numpy", "ndarray")
    yield from _base(holder, held)
    if array.dtype.__get__(holder) is held:
        yield Reference(".dtype", "memory of", why_not="an array keeps its dtype: drop the array")
    if array.dtype.__get__(holder).hasobject:
        # As a plain array: a subclass may run its own code.
        yield from _objects(array, array.view(holder, array), "", held)


def _objects(array: Any, values: Any, before: str, held: object) -> Iterator[Reference]:
    """Yields the places of an object among the elements of an array and of its fields."""
    dtype = array.dtype.__get__(values)
    if dtype.names is not None:
        for name in dtype.names:
            text = literal(name)
            if text is not None and dtype.fields[name][0].hasobject:
                part = array.__getitem__(values, name)
                yield from _objects(array, part, f"{before}[{text}]", held)
    elif dtype.char == "O":
        shape = array.shape.__get__(values)
        for number, value in enumerate(array.flat.__get__(values)):
            if value is held:
                index = module_value("numpy", "unravel_index")(number, shape)
                step = before + (f"[{', '.join(map(str, index))}]" if index else "[()]")
                yield Reference(step, "element", "{path} = None")


def read_dtype(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the metadata of a dtype, and its fields."""
    why = "a dtype cannot be changed: drop it, and the arrays that have it"
    for name in ("metadata", "fields"):
        if any(one is held for one in referents(read(holder, name))):
            reach = f"{{holder}}.{name}{UNWRITTEN}the dict"
            yield Reference(f".{name}", "memory of", why_not=why, reach=reach)


read_zone: Reader = keeps(
    "attribute",
    "a time keeps its zone: drop it, or put one with another zone in its place",
    "tzinfo",
)


def read_row(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the array of which a structure is one row. Python does not show it."""
    if is_a(held, module_value("numpy", "ndarray")):
        yield Reference(" (a row of the array)", "memory of", why_not=_WHY)


def read_iterator(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the arrays of an iterator of numpy."""
    why = "an iterator keeps its arrays: drop the iterator"
    yield from _base(holder, held)
    for name in ("operands", "iters"):
        for index, one in enumerate(read(holder, name) or ()):
            if one is held:
                yield Reference(f".{name}[{index}]", "memory of", why_not=why)


read_blocks: Reader = keeps(
    "memory of",
    "pandas keeps its blocks together: drop the frame, or its column",
    "blocks",
    "values",
)


def read_memoryview(holder: memoryview, held: object) -> Iterator[Reference]:
    """Yields the object whose memory a view shows."""
    try:
        shown = holder.obj
    except ValueError:
        return  # It was released.
    if shown is held:
        via = tuple(id(one) for one in referents(holder))
        yield Reference(".obj", "memory of", "{holder}.release()", via=via)
