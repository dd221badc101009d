"""Clears the frames that an exception keeps, and with them the objects in their local variables.

The traceback stays and can still be printed. A running frame is left alone, and so is the frame of
a generator: clearing a suspended one would end it and run its code.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

# CO_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE, CO_ASYNC_GENERATOR
SUSPENDABLE = 0x20 | 0x80 | 0x100 | 0x200
MOST_EXCEPTIONS = 1_000


def clear_frames(values: Iterable[object]) -> int:
    """Clears the frames of some exceptions and tracebacks, and of the exceptions behind them.

    Returns how many of the cleared frames had local variables.
    """
    cleared = 0
    for first in _tracebacks(values):
        traceback: TracebackType | None = first
        while traceback is not None:
            cleared += _clear(traceback.tb_frame)
            traceback = traceback.tb_next
    return cleared


def _clear(frame: FrameType) -> bool:
    if frame.f_code.co_flags & SUSPENDABLE:
        return False
    try:
        frame.clear()
    except RuntimeError:
        return False  # It is running.
    return frame.f_code.co_nlocals > 0


def _tracebacks(values: Iterable[object]) -> list[TracebackType]:
    """Returns the tracebacks among some values, and those of every exception linked to them."""
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
            # Through the base class: a subclass may redefine these names.
            for part in ("__traceback__", "__cause__", "__context__"):
                todo.append(BaseException.__dict__[part].__get__(value))
            group: Any = getattr(builtins, "BaseExceptionGroup", ())  # From Python 3.11 on.
            if isinstance(value, group):
                todo.extend(group.__dict__["exceptions"].__get__(value))
    return list(found.values())
