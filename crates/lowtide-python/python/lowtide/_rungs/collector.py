"""Python's garbage collector, in rounds: freeing some objects often makes others unreachable.

A full collection takes long in a large heap. So after one, the collector is asked again only if
something on the device may have become garbage since.

An object that becomes garbage loses the reference by which the program reached it, and keeps those
from within its own cycle. So it has fewer references than it was ever seen with while it was in use.
Looking at every object of a heap takes too long; most that a program drops are near its running code:
in a variable, an attribute of one, or a container there. Those are watched, weakly. What is further
away is found by the next full collection.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from .._devices.device import Device
from .._native import HookPoint, Touch, frame_variables, referents
from .caches import NOT_THROUGH, held_bytes
from .hook import Hook

OLDEST = 2
MOST_VISITED = 10_000
PACKAGE = __file__.rpartition("_rungs")[0]


class Collector(Hook):
    """Runs the garbage collector. With a device, it notices garbage that holds memory of it."""

    point = HookPoint.COLLECT
    name = "Python's collector"
    limit_s = 60.0

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._watched: Watched | None = None
        self._may_find = True
        self._found = 0

    def finds_nothing(self) -> bool | None:
        """Collects young objects, which is quick, and looks whether something that leads to device
        memory has lost a reference since the last full collection."""
        if self._watched is None or self._device is None:
            return None
        gc.collect(OLDEST - 1)
        if not self._may_find:
            fewer = self._watched.fewer()
            # Kept until the next full collection, which may not come at once.
            self._may_find = bool(fewer) and held_bytes(fewer, self._device.name) > 0
        return not self._may_find

    def run_round(self, round: int, is_full: bool) -> list[Touch]:
        if is_full:
            return self.run(round)
        found = gc.collect(OLDEST - 1)
        return [Touch(f"{found} unreachable young objects")] if found else []

    def run(self, round: int) -> list[Touch]:
        touched: list[Touch] = []
        # The first round collects the oldest generation. Later rounds begin with a younger one, so
        # that objects which finalizers have just created reach the oldest before it is collected
        # again.
        youngest = max(0, OLDEST - round)
        # Where the round before has found nothing, only what has become garbage since may be there. It is young, and a
        # collection of a heap of a million objects takes half a second. Nor can any free what is free already.
        oldest = OLDEST if round == 0 or self._found and self._may_free() else OLDEST - 1
        found = sum(gc.collect(generation) for generation in range(youngest, oldest + 1))
        self._found = found
        if found:
            touched.append(Touch(f"{found} unreachable objects"))
        if gc.garbage and round == 0:
            touched.append(Touch(f"{len(gc.garbage)} objects left in gc.garbage; clear that list"))
        if self._device is not None and round > 0:
            # There is always a second round.
            self._watched = self._watched or Watched()
            self._watched.look()
            self._may_find = False
        return touched

    def _may_free(self) -> bool:
        """Returns whether a collection may free so much of the device that its number shows it."""
        held = None if self._device is None else self._device.held()
        return held is None or self._device is None or held > self._device.noise_bytes


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
            one = reference()
            if one is None:
                del self._least[key]
            elif (count := sys.getrefcount(one)) < least:
                self._least[key] = (reference, count)
                if least != sys.maxsize:
                    fewer.append(one)
            del one
        return fewer


def near_running_code() -> list[weakref.ref[Any]]:
    """Returns references to what the variables of running functions and of their modules lead to, the
    nearest first. No code of the program runs."""
    modules = list(sys.modules.values())
    # The modules' dicts. What they have is in use.
    names = {id(vars(one)) for one in modules if type(one) is ModuleType}
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
