"""Readers for frames, generators, coroutines and async generators: the variables of code."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Generator, Iterator
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    GeneratorType,
)
from typing import Any, Literal, NamedTuple

from ..._native import frame_snapshot, referents, refers
from .functions import cell_contents
from .locals import (
    awaits,
    code_name,
    frame_of,
    has_begun,
    is_running,
    locals_of,
    place,
    snapshots_of,
)
from .look import key_text, pairs, plain
from .reference import Reference


def read_suspended(holder: object, held: object) -> Iterator[Reference]:
    """Yields the variables of a generator, coroutine or async generator, and what it waits for."""
    frame = frame_of(holder)
    if frame is None:
        return
    attributes = _ATTRIBUTES[type(holder)]
    own = f"{{holder}}.{attributes.frame}"
    verb = _verb(holder, own)
    why_not = "" if verb else f"this Python frees its variables only with the {attributes.word}"
    if frame is held:
        yield Reference("", "frame", verb, lambda: _close(holder), why_not=why_not, reach=own)
        return
    if awaits(holder) is held:
        reach = f"{{holder}}.{attributes.awaited}"
        yield Reference("", "awaits", verb, lambda: _close(holder), why_not=why_not, reach=reach)
        return
    known, via = snapshots_of(holder), (id(frame),)
    names = variables(frame, held, known)
    where = f"{attributes.word} {place(frame)}"
    for name in names:
        reach = _local(own, name, held)
        remark = f"{where}: {name}"
        yield Reference(
            f": {name}",
            "local",
            verb,
            lambda: _close(holder),
            why_not=why_not,
            via=via,
            reach=reach,
            remark=remark,
        )
    if not names and refers(holder, held) and type(held) is not CodeType:
        at = [id(one) for one in referents(holder)].index(id(held))
        reach, step = f"gc.get_referents({{holder}})[{at}]", ": (a value in use)"
        yield Reference(
            step,
            "stack",
            verb,
            lambda: _close(holder),
            why_not=why_not,
            via=via,
            reach=reach,
            imports=("gc",),
            remark=f"{where}: a value in use",
        )


class _Attributes(NamedTuple):
    """How Python names the parts of suspended code."""

    word: str
    frame: str
    awaited: str


_ATTRIBUTES = {
    GeneratorType: _Attributes("generator", "gi_frame", "gi_yieldfrom"),
    CoroutineType: _Attributes("coroutine", "cr_frame", "cr_await"),
    AsyncGeneratorType: _Attributes("async generator", "ag_frame", "ag_await"),
}


def _local(frame: str, name: str, held: object) -> str:
    """Returns the expression for a variable of a frame. The cell of a shared one has none."""
    return "" if type(held) is CellType else f"{frame}.f_locals[{name!r}]"


def _verb(holder: object, frame: str) -> str | None:
    """Returns the statement that drops the variables, or None if this Python has none."""
    if type(holder) is AsyncGeneratorType:
        # Awaiting nothing, it ends at once.
        return "next({holder}.aclose().__await__(), None)"
    if _closes(holder):
        return "{holder}.close()"
    return f"{frame}.clear()" if _drops_variables("clear", has_begun(holder)) else None


@functools.cache
def _drops_variables(how: Literal["close", "clear"], begun: bool) -> bool:
    """Returns whether `close()` of a generator, or `clear()` of its frame, drops its variables.

    Some versions of Python skip that where no code has to run: up to 3.12.3 (gh-118272), and later
    ones if the generator has not begun (gh-142766). From 3.13 on, the frame of one that has begun
    cannot be cleared. This interpreter is tested with a generator that has one variable.
    """
    held = {1}
    gone = weakref.ref(held)

    def wait(_: object) -> Generator[None]:
        yield

    waiting = wait(held)
    del held
    if begun:
        next(waiting)
    frame = frame_of(waiting) if how == "clear" else None
    try:
        if frame is None:
            waiting.close()
        else:
            frame.clear()
    except RuntimeError:
        return False
    return gone() is None


def _closes(holder: object) -> bool:
    return type(holder) is AsyncGeneratorType or _drops_variables("close", has_begun(holder))


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
        reach, remark = _local("{holder}", name, held), f"frame {place(holder)}: {name}"
        if running:
            where = code_name(holder.f_code)
            why = f"{where} is running: write `del {name}` there, or let it return"
            yield Reference(f": {name}", "local", why_not=why, reach=reach, remark=remark)
        else:
            verb = "{holder}.clear()"
            yield Reference(
                f": {name}", "local", verb, lambda: clear(holder), reach=reach, remark=remark
            )
    yield from _snapshot(holder, held)
    if holder.f_back is held:
        why = "a running frame keeps the one that called it"
        yield Reference("", "caller", why_not=why, reach="{holder}.f_back")
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
            why = "call locals() in that function again, or let it return"
            yield Reference(step, "snapshot", None, lambda: _refresh(frame), why_not=why, via=via)


def _refresh(frame: FrameType) -> None:
    """Brings the snapshot of a frame's variables up to date: what the function dropped goes."""
    frame.f_locals  # noqa: B018


def clear(frame: FrameType) -> None:
    """Clears the variables of a frame that has ended."""
    frame.clear()
