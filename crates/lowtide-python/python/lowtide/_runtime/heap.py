"""What native code has to know of the interpreter to read its heap, the objects of one type in it, and how
many of them `gc.freeze()` has hidden from the collector.

Python 3.12 moves immortal objects to the frozen ones at every collection. There the collector
reports hundreds of frozen objects in a program that has never frozen anything.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar, Final, TypeVar

from .._native import frozen_mortals, objects_of_type

_T = TypeVar("_T")
IMMORTAL: Final[object] = int.__mro__
"""A part of a static type: an immortal object that Python 3.12 keeps among the frozen ones."""
_MIXES_IMMORTALS: Final = sys.version_info[:2] == (3, 12)


def threads_in(version: tuple[int, int]) -> int:
    """Returns how many threads walk in this version of Python: 0 if the number of objects and of cores
    decides. In versions whose traverse slots have not been read, only the calling thread does."""
    return 0 if (3, 10) <= version <= (3, 13) else 1


class Interpreter:
    """Functions and facts of the interpreter, as they were when this module was imported.

    To look them up during a walk could run code that the program has put in their place.
    """

    get_objects = gc.get_objects
    get_freeze_count = gc.get_freeze_count
    get_threshold = gc.get_threshold
    get_count = gc.get_count
    current_frames = sys._current_frames
    current_exceptions = sys._current_exceptions

    # How frozen objects are linked is known for these versions.
    finds_frozen = (3, 10) <= sys.version_info[:2] <= (3, 14)
    # Where the collector has its lists of objects is known for these.
    knows_generations = (3, 10) <= sys.version_info[:2] <= (3, 13)
    # How objects are laid out is known for these. The walk prefetches memory by it.
    knows_layout = (3, 10) <= sys.version_info[:2] <= (3, 14)
    # Up to Python 3.10 a running frame shows its variables to the collector.
    frames_show = sys.version_info < (3, 11)
    # The traverse slots of these types, and of classes written in Python that are based on them or on
    # none, only read the object: threads without a thread state may call them (decision 0009).
    readers: ClassVar[tuple[type, ...]] = (
        dict,
        list,
        tuple,
        set,
        frozenset,
        types.FunctionType,
        types.CellType,
        types.MethodType,
        types.BuiltinFunctionType,
        property,
        staticmethod,
        classmethod,
        weakref.ReferenceType,
    )
    # How many threads walk: 0 lets the number of objects and of cores decide. Tests set another.
    threads = threads_in(sys.version_info[:2])


def objects_of(kind: type[_T]) -> list[_T]:
    """Returns the objects of a type, or of one below it: those that the collector lists, and frozen ones."""
    modules = sys.modules
    known: list[Any] = list(dict.values(modules)) if isinstance(modules, dict) else []
    return objects_of_type(Interpreter, kind, [*known, IMMORTAL])


def weakly(objects: Iterable[object]) -> list[weakref.ref[object]]:
    """Returns weak references to those objects of which there can be some."""
    found = []
    for one in objects:
        try:
            found.append(weakref.ref(one))
        except TypeError:
            continue
    return found


def alive(references: list[weakref.ref[object]]) -> list[object]:
    """Returns the objects that are still there."""
    return [one for one in (reference() for reference in references) if one is not None]


def frozen_count() -> int:
    """Returns how many objects are frozen, without immortal ones."""
    count = gc.get_freeze_count()
    if not count or not _MIXES_IMMORTALS:
        return count
    return frozen_mortals(count, IMMORTAL)
