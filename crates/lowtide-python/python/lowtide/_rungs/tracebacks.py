"""Stored tracebacks: after an uncaught error in a prompt, a notebook or a test run, `sys.last_exc`
and its kin keep every frame of it, and so every local of those frames.

The names are deleted and the locals of the frames cleared, as `traceback.clear_frames` does: whoever
else holds the exception can still print it. A frame that runs is left alone, and so is that of a
generator: to clear a suspended one would end it, and run its code.
"""

from __future__ import annotations

import builtins
import sys
from types import FrameType, TracebackType
from typing import Any

from .hook import Hook, Touched

NAMES = ("last_exc", "last_value", "last_traceback", "last_type")
# CO_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE, CO_ASYNC_GENERATOR
SUSPENDABLE = 0x20 | 0x80 | 0x100 | 0x200
MOST_EXCEPTIONS = 1_000


class StoredTracebacks(Hook):
    place = "caches"
    name = "stored tracebacks"

    def run(self, round: int) -> Touched:
        stored = {name: vars(sys)[name] for name in NAMES if name in vars(sys)}
        cleared = 0
        for traceback in tracebacks(list(stored.values())):
            cleared += clear_frames(traceback)
        touched: Touched = []
        for name, value in stored.items():
            delattr(sys, name)
            if value is not None:
                touched.append((f"sys.{name}", None))
        if cleared:
            touched.append((f"the locals of {cleared} frames of stored tracebacks", None))
        return touched


def tracebacks(values: list[object]) -> list[TracebackType]:
    """The tracebacks among some values, and those of every exception that hangs on them."""
    found: dict[int, TracebackType] = {}
    seen: set[int] = set()
    todo = list(values)
    while todo and len(seen) < MOST_EXCEPTIONS:
        value = todo.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, TracebackType):
            found[id(value)] = value
        elif isinstance(value, BaseException):
            # Through the base class: a subclass may define these names anew.
            for part in ("__traceback__", "__cause__", "__context__"):
                todo.append(BaseException.__dict__[part].__get__(value))
            todo.extend(_members(value))
    return list(found.values())


def _members(value: BaseException) -> list[object]:
    group: Any = getattr(builtins, "BaseExceptionGroup", None)  # From Python 3.11 on.
    if group is None or not isinstance(value, group):
        return []
    return list(group.__dict__["exceptions"].__get__(value))


def clear_frames(traceback: TracebackType | None) -> int:
    """Clears the locals of the frames of a traceback that have ended; how many had any."""
    cleared = 0
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_flags & SUSPENDABLE == 0 and frame.f_code.co_nlocals > 0:
            cleared += _clear(frame)
        traceback = traceback.tb_next
    return cleared


def _clear(frame: FrameType) -> int:
    try:
        frame.clear()
    except RuntimeError:
        return 0  # It runs.
    return 1
