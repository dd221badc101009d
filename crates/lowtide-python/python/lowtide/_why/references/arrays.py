"""Readers for arrays of numpy, memory views and ctypes: objects that show the memory of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..._native import referents
from .look import module_value, read
from .reference import Act, Reference

_WHY = "it shows the memory of another object: drop it, or copy what it shows"


def read_array(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the base of an array, and the elements of an array of objects."""
    array = module_value("numpy", "ndarray")
    if read(holder, "base") is held:
        yield Reference(".base", "memory of", why_not=_WHY)
    dtype = array.dtype.__get__(holder)
    if dtype.char != "O":
        return
    shape = array.shape.__get__(holder)
    for number, value in enumerate(array.flat.__get__(holder)):
        if value is held:
            index = _index(number, shape)
            step = f"[{', '.join(map(str, index))}]" if index else "[()]"
            yield Reference(step, "element", "{path} = None", _none(array, holder, index, held))


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for length in reversed(shape):
        number, at = divmod(number, length)
        index.append(at)
    return tuple(reversed(index))


def _none(array: Any, holder: object, index: tuple[int, ...], held: object) -> Act:
    def act() -> None:
        if array.__getitem__(holder, index) is held:
            array.__setitem__(holder, index, None)

    return act


def read_memoryview(holder: memoryview, held: object) -> Iterator[Reference]:
    """Yields the object whose memory a view shows."""
    try:
        shown = holder.obj
    except ValueError:
        return  # It was released.
    if shown is held:
        via = tuple(id(one) for one in referents(holder))
        yield Reference(".obj", "memory of", "{holder}.release()", holder.release, via=via)
