"""A whole path from a root to an object, as a person would write it.

What an expression reaches is written as one (`runner.pooling_runner.model`). What no expression
reaches is described in words (`frame serve() line 88: batch`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CellType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Literal, NamedTuple, TypeAlias

from ..references.contexts import task_name, thread_name
from ..references.functions import function_name
from ..references.locals import code_name, frame_of, place, suspended
from ..references.look import (
    is_a,
    key_text,
    module_dict,
    module_value,
    namespace_of,
    plain,
    type_name,
)
from ..references.reference import Reference
from ..references.shell import FAILED_CELL, OUTPUT
from ..references.tensors import is_tensor, is_view
from .edges import Edge

LONGEST_CHARACTERS = 160
NATIVE_ROOT = "native code's"
_CO_OPTIMIZED = 0x1
GRAPH_OF = "autograd graph of "

RootKind: TypeAlias = Literal["modules", "frame", "exception", "interpreter", "native"]


class Root(NamedTuple):
    """Where a path begins. `name` is that of the module or of the thread, or says what it is."""

    kind: RootKind
    name: str


class PathText:
    """A path while it is being written: places in words, then an expression inside the last one."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.parts: list[str] = []
        self.remark = ""
        self.line: int | None = None
        self.said_cell = False
        self.in_loop = False
        self.open_task: str | None = None

    def enter(self, words: str) -> None:
        """Enters a frame, generator or task; the expression that follows is evaluated there."""
        if self.parts:
            self.places.append("".join(self.parts))
        self.places.append(words)
        self.parts = []

    def restart(self, *parts: str) -> None:
        """Begins anew at an object that has a name of its own."""
        self.places, self.parts, self.remark = [], list(parts), ""
        self.in_loop = False
        self.open_task = None

    def add(self, step: str) -> None:
        """Continues the expression."""
        self.parts.append(step.lstrip(".") if not self.parts and step.startswith(".") else step)

    def expression(self) -> str:
        """Returns the expression inside the last place."""
        return "".join(self.parts)

    def text(self) -> str:
        """Returns the whole path."""
        places = ", ".join(self.places) + (": " if self.places and self.parts else "")
        return f"{places}{self.expression()}{self.remark}"


def write(root: Root, objects: Sequence[object], edges: Sequence[Edge]) -> PathText:
    """Writes the path from `root` over some edges."""
    text = PathText()
    _begin(text, root, objects[0])
    for edge in edges:
        _arrive(text, objects[edge.start])
        _step(text, objects[edge.start], objects[edge.end], edge.reference)
    last = objects[edges[-1].end] if edges else objects[0]
    _finish(text, last, edges[-1].reference if edges else None)
    return text


def _begin(text: PathText, root: Root, first: object) -> None:
    if root.kind == "modules":
        if first is not sys.modules:
            _at_module(text, root.name)
    elif root.kind == "frame":
        if type(first) is not FrameType:
            text.restart(f"thread {root.name!r}")
        elif not is_module_frame(first):
            text.enter(_thread_prefix(root.name) + f"frame {place(first)}")
    elif root.kind == "exception":
        name = type_name(type(first))
        text.restart(_thread_prefix(root.name) + f"exception {name} being handled")
    elif root.kind == "native":
        what = type_name(type(first))
        if is_a(first, FunctionType) or type(first) is MethodType:
            what = f"{what} {function_name(first)}"
        text.restart(f"{NATIVE_ROOT} {what}")
    else:
        text.restart(root.name)


def _thread_prefix(name: str) -> str:
    return "" if name in ("", "MainThread") else f"thread {name!r} "


def _at_module(text: PathText, name: str) -> None:
    text.restart(*([] if name == "__main__" else [name]))


def is_module_frame(frame: FrameType) -> bool:
    """Returns whether the variables of this frame are the names of a module."""
    optimised = frame.f_code.co_flags & _CO_OPTIMIZED
    return not optimised and frame.f_locals is frame.f_globals


def _arrive(text: PathText, holder: object) -> None:
    """Begins the path anew at objects with a name of their own; how they were reached does not
    matter."""
    name = module_name(holder)
    if name is not None:
        _at_module(text, name)
    elif thread_name(holder) is not None and text.expression().startswith("threading._active["):
        text.restart(f"thread {thread_name(holder)!r}")


def module_name(value: object) -> str | None:
    """Returns the name of a module, or of the one whose namespace this is; None for other objects."""
    if is_a(value, ModuleType):
        return namespace_of(module_dict(value))  # type: ignore[arg-type]
    return namespace_of(value) if type(value) is dict else None


def _step(text: PathText, holder: object, held: object, reference: Reference) -> None:
    kind, step = reference.kind, reference.step
    named_cell, text.said_cell = text.said_cell, False
    if _is_loop_part(holder):
        text.in_loop = True
    if kind in ("local", "stack"):
        _enter_scope(text, holder)
        name = step.removeprefix(": ")
        in_module = bool(text.parts)  # A module's frame: its variables are the module's names.
        text.add(f".{name}" if in_module else name)
        text.said_cell = type(held) is CellType
    elif kind == "frame" or kind == "caller":
        text.line = holder.tb_lineno if type(holder) is TracebackType else text.line
        if type(holder) is not TracebackType:
            _enter_task(text, holder)
        if kind == "caller" and text.places:
            text.places.pop()
            text.enter(f"frame {place(held)}")  # type: ignore[arg-type]
    elif kind in (OUTPUT, FAILED_CELL):
        text.restart(step)
    elif kind == "traceback":
        pass
    elif kind == "coroutine" or kind == "awaits":
        if task_name(holder) is not None:
            _enter_task(text, holder)
    elif kind == "autograd graph":
        if text.parts[:1] != [GRAPH_OF]:
            text.parts = [GRAPH_OF, *text.parts]
    elif kind == "item" and type(holder) is dict and namespace_of(holder) is not None:
        text.add(f".{step[2:-2]}" if step[2:-2].isidentifier() else step)
    elif type(holder) is CellType and named_cell:
        pass
    elif kind == "cell":
        text.add(step)
        text.said_cell = True
    else:
        text.add(step)
        if kind == "thread-local" and reference.remark:
            text.remark = f" ({reference.remark})"


def _is_loop_part(value: object) -> bool:
    """Returns whether this belongs to an event loop, where nobody looks for a task."""
    for module, name in (("asyncio.events", "AbstractEventLoop"), ("asyncio.events", "Handle")):
        base = module_value(module, name)
        if base is not None and is_a(value, base):
            return True
    future = module_value("_asyncio", "Future")
    return future is not None and is_a(value, future) and task_name(value) is None


def _enter_task(text: PathText, holder: object) -> None:
    name = task_name(holder)
    if name is None:
        return
    if text.in_loop:
        text.restart()
    text.open_task = name


def _enter_scope(text: PathText, holder: object) -> None:
    """Writes which frame, generator or task the variable that follows belongs to."""
    frame = frame_of(holder)
    if frame is None:
        return
    where = place(frame, text.line)
    text.line = None
    names = suspended(holder)
    word = "frame" if names is None else names.word
    if type(holder) is FrameType:
        if text.places and not text.parts and text.places[-1].endswith(f"frame {where}"):
            return  # The root was this frame.
        if is_module_frame(holder):
            name = namespace_of(holder.f_globals)
            if name is not None:
                _at_module(text, name)
                return
    if text.open_task is not None:
        word, text.open_task = f"task {text.open_task!r}", None
    text.enter(f"{word} {where}")


def _finish(text: PathText, last: object, reference: Reference | None) -> None:
    """Writes what is left to say about the object at the end."""
    if text.open_task is not None:
        text.enter(f"task {text.open_task!r}")
    if reference is not None and reference.kind == "traceback":
        text.add(".__traceback__")
    elif type(last) is FrameType and reference is not None and reference.kind == "frame":
        text.enter(f"frame {place(last, text.line)}")
    elif reference is not None and reference.kind != "view" and is_tensor(last) and is_view(last):
        text.remark += " (view)"
    elif not text.places and not text.parts:
        text.add(_bare(last))


def _bare(value: object) -> str:
    """Returns the name of a root that has no expression."""
    if is_a(value, ModuleType) or type(value) is dict:
        otherwise = key_text(value) if type(value) is dict else "module"
        return module_name(value) or otherwise
    frame = frame_of(value)
    if frame is not None:
        return f"frame {code_name(frame.f_code)}"
    return f"<{plain(type_name(type(value)))}>"


def shorten(text: str, limit: int = LONGEST_CHARACTERS) -> str:
    """Shortens a long path in the middle, for people: its beginning and its end say the most."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[: limit - 1 - half]}…{text[-half:]}"
