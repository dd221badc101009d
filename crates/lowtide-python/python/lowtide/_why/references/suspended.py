"""Readers for frames, generators, coroutines and async generators: the variables of code."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Generator, Iterator
from types import AsyncGeneratorType, CellType, CodeType, FrameType
from typing import Any

from ..._native import frame_snapshot, refers
from .functions import cell_contents
from .locals import (
    awaits,
    code_name,
    frame_of,
    has_begun,
    is_running,
    locals_of,
    snapshots_of,
)
from .look import key_text, pairs, plain
from .reference import Reference


def read_suspended(holder: object, held: object) -> Iterator[Reference]:
    """Yields the variables of a generator, coroutine or async generator, and what it waits for."""
    frame = frame_of(holder)
    if frame is None:
        return
    verb = "{holder}.close()" if _closes(holder) else "{holder}.throw(GeneratorExit)"
    if frame is held:
        yield Reference("", "frame", verb, lambda: _close(holder))
        return
    if awaits(holder) is held:
        yield Reference("", "awaits", verb, lambda: _close(holder))
        return
    known, via = snapshots_of(holder), (id(frame),)
    names = variables(frame, held, known)
    for name in names:
        yield Reference(f": {name}", "local", verb, lambda: _close(holder), via=via)
    if not names and refers(holder, held) and type(held) is not CodeType:
        yield Reference(": (a value in use)", "stack", verb, lambda: _close(holder), via=via)


@functools.cache
def _close_drops_variables(begun: bool) -> bool:
    """Returns whether `close()` drops the variables; otherwise only freeing the generator does.

    Some versions of Python skip that where no code has to run: up to 3.12.3 (gh-118272), and later
    ones if the generator has not begun (gh-142766). This interpreter is tested with a generator
    that has one variable.
    """
    held = {1}
    gone = weakref.ref(held)

    def wait(_: object) -> Generator[None]:
        yield

    waiting = wait(held)
    del held
    if begun:
        next(waiting)
    waiting.close()
    return gone() is None


def _closes(holder: object) -> bool:
    return type(holder) is AsyncGeneratorType or _close_drops_variables(has_begun(holder))


def _close(holder: Any) -> None:
    if frame_of(holder) is None:
        return
    if type(holder) is AsyncGeneratorType:
        # aclose() only creates an awaitable. Driving it here ends it if no await runs.
        _drive(holder.aclose())
    elif _closes(holder):
        holder.close()
    else:
        _throw(holder)


def _throw(holder: Generator[Any, Any, Any]) -> None:
    """Does what `close()` does, but always runs the rest of the code, which drops the variables."""
    try:
        holder.throw(GeneratorExit)
    except (GeneratorExit, StopIteration):
        return
    raise RuntimeError("it ignored GeneratorExit and continued")


def _drive(closing: Any) -> None:
    try:
        closing.send(None)
    except (StopIteration, StopAsyncIteration):
        return
    closing.close()
    raise TypeError("this async generator awaits while it closes: await its aclose() instead")


def variables(frame: FrameType, held: object, known: set[int] | None = None) -> list[str]:
    """Returns the names under which a frame holds an object, or the cell of a shared variable."""
    found = locals_of(frame, known)
    if type(held) is not CellType:
        return [name for name, value in found.items() if value is held]
    contents = cell_contents(held)
    shared = [plain(name) for name in frame.f_code.co_cellvars + frame.f_code.co_freevars]
    return [name for name in shared if name in found and found[name] is contents][:1]


def read_frame(holder: FrameType, held: object) -> Iterator[Reference]:
    """Yields the variables of a frame, and the frame that called it."""
    known = snapshots_of(holder)
    running = is_running(holder)
    for name in variables(holder, held, known):
        if running:
            where = code_name(holder.f_code)
            why = f"{where} is running: write `del {name}` there, or let it return"
            yield Reference(f": {name}", "local", "del {path}", why_not=why)
        else:
            yield Reference(f": {name}", "local", "{holder}.clear()", lambda: clear(holder))
    yield from _snapshot(holder, held)
    if holder.f_back is held:
        yield Reference("", "caller", why_not="a running frame keeps the one that called it")
    if holder.f_globals is held:
        yield Reference(".f_globals", "globals", why_not="a frame keeps its module's namespace")
    if holder.f_trace is held:
        yield Reference(".f_trace", "trace function", why_not="a debugger set it: end the debugger")


def _snapshot(frame: FrameType, held: object) -> Iterator[Reference]:
    """Yields the snapshot of its variables that a frame keeps, and what only that holds."""
    snapshot = frame_snapshot(frame)
    if snapshot is None:
        return
    why = "the frame keeps a snapshot of its variables since locals() was called"
    if snapshot is held:
        yield Reference("locals()", "snapshot", why_not=why)
    for name, value in pairs(snapshot):
        if value is held:
            step, via = f"locals()[{key_text(name)}]", (id(snapshot),)
            yield Reference(step, "snapshot", "locals()", lambda: _refresh(frame), via=via)


def _refresh(frame: FrameType) -> None:
    """Brings the snapshot of a frame's variables up to date: what the function dropped goes."""
    frame.f_locals  # noqa: B018


def clear(frame: FrameType) -> None:
    """Clears the variables of a frame that has ended."""
    frame.clear()
