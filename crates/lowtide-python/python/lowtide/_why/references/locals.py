"""Reads the variables of frames without leaving a trace.

Up to Python 3.12, `frame.f_locals` of a function creates a dict that the frame keeps: a snapshot
that holds every variable long after the function has dropped it. To read it again drops those. A
tool that looks for holders must not become one, and must free nothing either. So variables are read
from the frame itself (`frame_variables`). From 3.13 on, `f_locals` of a function is a view.

Since 3.12 a comprehension runs in the frame around it. In the body of a module or class its variables
are beside the names, which are in a dict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import NamedTuple

from ..._native import frame_locals, frame_variables, printable
from .look import AnyDict, is_a, pairs, plain, read

_CO_OPTIMIZED = 0x1
_MOST_FRAMES = 1000


def locals_of(frame: FrameType) -> dict[str, object]:
    """Returns the variables of a frame by name, as a new dict. The namespace of a module or of a class body
    is copied."""
    known_values = frame_variables(frame)
    if known_values is not None:
        names = _named(body_names(frame))
        return names | {plain(name): value for name, value in known_values.items()}
    raw: object = frame.f_locals
    if frame.f_code.co_flags & _CO_OPTIMIZED:
        return dict(raw)  # type: ignore[call-overload, no-any-return]
    # exec() takes any mapping as a namespace. Only a dict can be read without running its code.
    return _named(raw) if is_a(raw, dict) else {}


def body_names(frame: FrameType) -> AnyDict:
    """Returns the dict with the names of the body of a module or class; for a function an empty one."""
    names = None if frame.f_code.co_flags & _CO_OPTIMIZED else frame_locals(frame)
    return names if is_a(names, dict) else {}  # type: ignore[return-value]


def _named(raw: object) -> dict[str, object]:
    return {key: value for key, value in pairs(raw) if type(key) is str}  # type: ignore[arg-type]


class Suspended(NamedTuple):
    """How Python names a kind of suspended code and its parts."""

    word: str
    frame: str
    awaited: str


# By identity: a metaclass may define how its classes are hashed.
_SUSPENDED = {
    id(GeneratorType): Suspended("generator", "gi_frame", "gi_yieldfrom"),
    id(CoroutineType): Suspended("coroutine", "cr_frame", "cr_await"),
    id(AsyncGeneratorType): Suspended("async generator", "ag_frame", "ag_await"),
}


def suspended(value: object) -> Suspended | None:
    """Returns the names of the parts of a generator, coroutine or async generator; else None."""
    return _SUSPENDED.get(id(type(value)))


def frame_of(value: object) -> FrameType | None:
    """Returns the frame of a generator, coroutine or async generator; a frame is its own."""
    if type(value) is FrameType:
        return value
    names = suspended(value)
    return None if names is None else getattr(value, names.frame)


def greenlet_frames(value: object) -> Iterator[FrameType]:
    """Yields the frames of a suspended greenlet, the one that it waits in first."""
    frame = read(value, "gr_frame")
    for _ in range(_MOST_FRAMES):
        if type(frame) is not FrameType:
            return
        yield frame
        frame = frame.f_back


def has_begun(value: object) -> bool:
    """Returns whether suspended code has run up to a `yield` or an `await`, and not only been
    called."""
    if sys.version_info < (3, 11):
        frame = frame_of(value)
        return frame is not None and frame.f_lasti >= 0
    if type(value) is GeneratorType:
        return value.gi_suspended
    return type(value) is CoroutineType and value.cr_suspended


def is_running(frame: FrameType) -> bool:
    """Returns whether some thread is executing this frame or a function that it called."""
    stacks = list(sys._current_frames().values())
    found: FrameType | None = None
    try:
        while stacks:
            found = stacks.pop()
            while found is not None:
                if found is frame:
                    return True
                found = found.f_back
        return False
    finally:
        # Our own frame is one of them. A variable that refers to it would keep it, its callers and
        # all their variables alive until the collector runs.
        found = None
        stacks.clear()


def place(frame: FrameType, line: int | None = None) -> str:
    """Returns `serve() line 88`, the form that all texts use for a place in code."""
    name = code_name(frame.f_code)
    line = frame.f_lineno if line is None else line
    return f"{name} line {line}" if line else name


def code_name(code: CodeType) -> str:
    """Returns `serve()`."""
    return f"{printable(plain(code.co_name))}()"
