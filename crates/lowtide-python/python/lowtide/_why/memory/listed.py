"""How much memory of a device the program has, without a walk over the heap.

Tensors are tracked by the collector, so a pass over the objects that it lists finds what a walk finds, and
so it does on a frozen heap where frozen objects can be read like the others. It misses objects of native
types that take no part in garbage collection: a scripted module, packed parameters, the handle of a
collective. Each of those refers to its type. So once a walk has found no more than the pass, the pass is
enough for as long as those types have as many references.
"""

from __future__ import annotations

import sys
from typing import Final

from ..._native import examine, listed_memory
from ..alone import EXAMINING
from ..question import Question
from .probe import candidate_types

_COLLECTED: Final = 1 << 14
"""The flag of types that take part in garbage collection (`Py_TPFLAGS_HAVE_GC`)."""
_MADE_AT_RUN_TIME: Final = 1 << 9
"""The flag of types to which each of their objects refers (`Py_TPFLAGS_HEAPTYPE`)."""

_FLAGS: Final = type.__dict__["__flags__"].__get__
"""As `type` reports them: a metaclass may answer otherwise."""

_References = dict[int, int]
"""By the id of a type. The types themselves would have one reference more."""
_complete: dict[str, _References] = {}
"""By device: the references of the types that are not listed, when a walk found no more than a pass."""


class Listed:
    """What the objects have that the collector lists. To be made by whoever examines alone."""

    def __init__(self, device: str | None) -> None:
        self._device = device or ""
        self._references = _references()
        self.bytes = listed_memory(Question(device=device))

    @property
    def all_bytes(self) -> int | None:
        """What a walk would find; `None` if it might find more than the pass."""
        return self.bytes if _complete.get(self._device) == self._references else None

    def compare(self, walked_bytes: int) -> None:
        """Learns from a walk over the same heap whether the pass found everything."""
        if walked_bytes == self.bytes:
            _complete[self._device] = self._references


def memory_of(device: str) -> int:
    """Returns how much memory of a device the program's objects hold, each piece of memory counted once."""
    with EXAMINING.alone():
        listed = Listed(device)
        if listed.all_bytes is not None:
            return listed.all_bytes
        walked = examine(Question(device=device)).memory.bytes
        listed.compare(walked)
        return walked


def memory_if_listed(device: str) -> int | None:
    """Returns the same, or `None` if only a walk can tell."""
    with EXAMINING.alone():
        if device not in _complete:
            return None
        return Listed(device).all_bytes


def _references() -> _References:
    """Returns how many references the types have whose objects a pass does not find."""
    todo = candidate_types()
    found: _References = {}
    while todo:
        kind = todo.pop()
        flags = _FLAGS(kind)
        if id(kind) in found or flags & _COLLECTED:
            continue  # The types below one that is collected are, too.
        todo += type.__subclasses__(kind)
        if flags & _MADE_AT_RUN_TIME:
            found[id(kind)] = sys.getrefcount(kind)
    return found
