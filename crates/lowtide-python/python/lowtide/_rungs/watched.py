"""Notices objects that may have become garbage, without a collection.

An object that becomes garbage loses the reference by which the program reached it, and keeps those
from within its own cycle. So it has fewer references than it was ever seen with while it was in use.
Looking at every object of a heap takes too long; most that a program drops are near its running code:
in a variable, an attribute of one, or a container there. Those are watched, weakly. What is further
away is found by the next full collection.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from .._native import frame_variables, referents
from .lru_caches import NOT_THROUGH

MOST_VISITED = 10_000
PACKAGE = __file__.rpartition("_rungs")[0]


class Watched:
    """Objects near the running code, each with the fewest references that it was seen with."""

    def __init__(self) -> None:
        self._least: dict[int, tuple[weakref.ref[Any], int]] = {}

    def look(self) -> None:
        """Watches what is near the running code now, and what was watched before."""
        found = near_running_code()
        for reference in found:
            key = id(reference())
            if key not in self._least or self._least[key][0]() is None:
                self._least[key] = (reference, sys.maxsize)
        self.fewer()

    def fewer(self) -> list[object]:
        """Returns the watched objects that have fewer references than ever before."""
        fewer: list[object] = []
        for key, (reference, least) in list(self._least.items()):
            count = references_to(reference)
            if count == 0:
                del self._least[key]
            elif count < least:
                self._least[key] = (reference, count)
                if least != sys.maxsize:
                    fewer.append(reference())
        return fewer


def references_to(reference: weakref.ref[Any]) -> int:
    """Returns how many references an object has, by the same measure each time; 0 if it is gone."""
    one = reference()
    return 0 if one is None else sys.getrefcount(one)


def near_running_code() -> list[weakref.ref[Any]]:
    """Returns references to what the variables of running functions and of their modules lead to, the
    nearest first. No code of the program runs."""
    names = namespaces()
    found: list[weakref.ref[Any]] = []
    seen: set[int] = set(names)
    todo: list[object] = list(variables())
    most = MOST_VISITED + len(names)
    while todo and len(seen) < most:
        here, todo = todo, []
        for one in here:
            # One list may hold a million objects.
            if len(seen) >= most:
                break
            kind = type(one)
            if id(one) in seen or issubclass(kind, NOT_THROUGH):
                continue
            seen.add(id(one))
            if type.__dict__["__weakrefoffset__"].__get__(kind):
                found.append(weakref.ref(one))
            todo += referents(one)
    return found


def namespaces() -> set[int]:
    """Returns the identities of the modules' dicts. What they have is in use."""
    modules = list(sys.modules.values())
    return {id(vars(one)) for one in modules if type(one) is ModuleType}


def variables() -> Iterator[object]:
    """Yields the values of the variables of running functions and of their modules."""
    # From Python 3.12 on, a frame that ends while one of its own variables leads to it stays, with all
    # that it holds, until the next collection. So its own is never among them.
    own = threading.get_ident()
    tops = [top for thread, top in sys._current_frames().items() if thread != own]
    tops.append(sys._getframe(1))
    while tops:
        frame: FrameType | None = tops.pop()
        while frame is not None:
            if not frame.f_code.co_filename.startswith(PACKAGE):
                yield from list(frame.f_globals.values())
                found = frame_variables(frame)
                if found is not None:
                    yield from found.values()
                elif sys.version_info >= (3, 13):
                    yield from list(frame.f_locals.values())
            frame = frame.f_back
