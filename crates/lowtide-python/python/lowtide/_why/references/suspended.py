"""Readers for frames, generators, coroutines and async generators: the variables of code; and for exceptions
and tracebacks, which keep frames."""

from __future__ import annotations

import dis
import functools
import weakref
from collections.abc import Generator, Iterator
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    FrameType,
    GetSetDescriptorType,
    TracebackType,
)
from typing import Any, Literal, NamedTuple

from ..._native import frame_locals, refers
from .functions import cell_contents
from .locals import (
    Suspended,
    body_names,
    code_name,
    frame_of,
    greenlet_frames,
    has_begun,
    is_running,
    locals_of,
    place,
    suspended,
)
from .look import item, key_text, module_value, pairs, plain, read
from .reference import UNWRITTEN, Reference

_FRAME = "{holder}.tb_frame"
_LINKS = (("__traceback__", "traceback"), ("__cause__", "cause"), ("__context__", "context"))


def read_suspended(holder: object, held: object) -> Iterator[Reference]:
    """Yields the variables of a generator, coroutine or async generator, and what it waits for."""
    frame, names = frame_of(holder), suspended(holder)
    if frame is None or names is None:
        return
    own = f"{{holder}}.{names.frame}"
    verb, why, imports = _end(holder, names)
    is_async = type(holder) is AsyncGeneratorType
    act = functools.partial(_throw, holder) if verb is None and not is_async else None

    def found(step: str, kind: str, reach: str, remark: str = "") -> Reference:
        return Reference(
            step,
            kind,
            verb,
            act,
            why_not=why,
            via=() if kind in ("frame", "awaits") else (id(frame),),
            reach=reach,
            imports=imports,
            remark=f"{names.word} {place(frame)}: {remark}" if remark else "",
        )

    if frame is held:
        yield found("", "frame", own)
        return
    if getattr(holder, names.awaited) is held:
        yield found("", "awaits", f"{{holder}}.{names.awaited}")
        return
    local = variables(frame, held)
    for name in local:
        yield found(f": {name}", "local", _local(own, name, held), name)
    if not local and refers(holder, held) and type(held) is not CodeType:
        yield found(": (a value in use)", "stack", f"{own}{UNWRITTEN}a value in use")


class _End(NamedTuple):
    """How suspended code is ended: the statement, else what a person does; and the modules that the
    statement needs."""

    verb: str | None
    why_not: str = ""
    imports: tuple[str, ...] = ()


def _end(holder: object, names: Suspended) -> _End:
    """Returns what ends suspended code and drops its variables."""
    if type(holder) is AsyncGeneratorType:
        return _end_async(holder)
    if _drops_variables("close", has_begun(holder)):
        return _End("{holder}.close()")
    if _drops_variables("clear", has_begun(holder)):
        return _End(f"{{holder}}.{names.frame}.clear()")
    return _End(None, f"this Python frees its variables only with the {names.word}")


def _end_async(holder: AsyncGeneratorType[Any, Any]) -> _End:
    if not _awaits_something(holder.ag_code):
        # Awaiting nothing, it ends at once.
        return _End("next({holder}.aclose().__await__(), None)")
    running = module_value("_asyncio", "_get_running_loop")
    if running is not None and running() is None:
        end = "loop.run_until_complete(ended.aclose()), loop.close()"
        verb = f"(lambda ended, loop: ({end}))({{holder}}, asyncio.new_event_loop())"
        return _End(verb, "", ("asyncio",))
    return _End(None, "await its aclose()")


def _awaits_something(code: CodeType) -> bool:
    """Returns whether code may await, so that it may do so while it is closed."""
    names = {one.opname for one in dis.get_instructions(code)}
    return "GET_AWAITABLE" in names or "SETUP_ASYNC_WITH" in names or "BEFORE_ASYNC_WITH" in names


def _local(frame: str, name: str, held: object) -> str:
    """Returns the expression for a variable of a frame. The cell of a shared one has none."""
    return "" if type(held) is CellType else f"{frame}.f_locals[{name!r}]"


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


def _throw(holder: Any) -> None:
    """Does what `close()` does, but always runs the rest of the code, which drops the variables."""
    try:
        holder.throw(GeneratorExit)
    except (GeneratorExit, StopIteration):
        return
    raise RuntimeError("it ignored GeneratorExit and continued")


def read_greenlet(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the frames of a suspended greenlet, and the greenlet that it returns to."""
    why = "a greenlet keeps its frames while it waits: end it"
    for number, frame in enumerate(greenlet_frames(holder)):
        if frame is held:
            # Its code sees a GreenletExit where it waits.
            reach = "{holder}.gr_frame" + ".f_back" * number
            verb = "{holder}.throw()"
            yield Reference("", "greenlet", verb, why_not=why, reach=reach)
    if read(holder, "parent") is held:
        yield Reference(".parent", "attribute", why_not="a greenlet returns to its parent")
    if read(holder, "run") is held:
        yield Reference(".run", "attribute", why_not="a greenlet keeps its function: drop it")


def variables(frame: FrameType, held: object) -> list[str]:
    """Returns the names under which a frame holds an object, or the cell of a shared variable."""
    found = locals_of(frame)
    if type(held) is not CellType:
        return [name for name, value in found.items() if value is held]
    contents = cell_contents(held)
    shared = [plain(name) for name in frame.f_code.co_cellvars + frame.f_code.co_freevars]
    return [name for name in shared if name in found and found[name] is contents][:1]


def read_frame(holder: FrameType, held: object) -> Iterator[Reference]:
    """Yields the variables of a frame, and the frame that called it."""
    running = is_running(holder)
    # One that waits in a greenlet has not ended, so that it does not show its variables; up to Python 3.10
    # all frames do.
    has_greenlets = module_value("greenlet", "greenlet") is not None
    in_greenlet = not running and has_greenlets and not refers(holder, held)
    # Those of a module are in its namespace, which has a name of its own.
    names = {} if body_names(holder) is holder.f_globals else body_names(holder)
    for name in sorted(variables(holder, held), key=lambda one: item(names, one) is held):
        verb, why = None, ""
        if running:
            where = code_name(holder.f_code)
            why = f"{where} is running: write `del {name}` there, or let it return"
        elif in_greenlet:
            why = "end the greenlet that waits there, by its throw()"
        else:
            verb = "{holder}.clear()"
        reach, remark = _local("{holder}", name, held), f"frame {place(holder)}: {name}"
        via = (id(names),) if item(names, name) is held else ()
        step = f": {name}"
        yield Reference(step, "local", verb, why_not=why, via=via, reach=reach, remark=remark)
    yield from _snapshot(holder, held)
    if holder.f_back is held:
        why = "a running frame keeps the one that called it"
        yield Reference("", "caller", why_not=why, reach="{holder}.f_back")
    if holder.f_globals is held:
        yield Reference(".f_globals", "globals", why_not="a frame keeps its module's namespace")
    if holder.f_trace is held:
        yield Reference(".f_trace", "trace function", "{path} = None")


def _snapshot(frame: FrameType, held: object) -> Iterator[Reference]:
    """Yields the snapshot of its variables that a frame keeps, and what only that holds."""
    snapshot = frame_locals(frame)
    if type(snapshot) is not dict or body_names(frame) is snapshot:
        return
    why = "the frame keeps a snapshot of its variables since locals() was called"
    if snapshot is held:
        yield Reference(": locals()", "snapshot", why_not=why)
    for name, value in pairs(snapshot):
        if value is held:
            step, via = f": locals()[{key_text(name)}]", (id(snapshot),)
            why = "call locals() in that function again, or let it return"
            # Brings the snapshot up to date: what the function dropped goes.
            act = lambda: frame.f_locals
            yield Reference(step, "snapshot", None, act, why_not=why, via=via)


def read_traceback(holder: TracebackType, held: object) -> Iterator[Reference]:
    """Yields the frame of a traceback, and the next traceback."""
    frame = holder.tb_frame
    if frame is held:
        step = f" frame {code_name(frame.f_code)} line {holder.tb_lineno}"
        if is_running(frame):
            why = f"{code_name(frame.f_code)} is running: let it return"
            yield Reference(step, "frame", why_not=why, reach=_FRAME)
        else:
            yield Reference(step, "frame", f"{_FRAME}.clear()", reach=_FRAME)
    if holder.tb_next is held:
        yield Reference(".tb_next", "traceback", "{path} = None")


def read_exception(holder: BaseException, held: object) -> Iterator[Reference]:
    """Yields the traceback and arguments of an exception, and the exceptions behind it."""
    for name, kind in _LINKS:
        getset: GetSetDescriptorType = BaseException.__dict__[name]
        if getset.__get__(holder) is held:
            yield Reference(f".{name}", kind, "{path} = None")
    args: tuple[Any, ...] = BaseException.__dict__["args"].__get__(holder)
    if args is held:
        yield Reference(".args", "arguments", "{path} = ()")
    for index, value in enumerate(tuple.__iter__(args)):
        if value is held:
            yield Reference(f".args[{index}]", "argument", "{holder}.args = ()", via=(id(args),))
