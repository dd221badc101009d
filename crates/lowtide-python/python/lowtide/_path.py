"""A whole path from a root to an object, as a person would write it.

The heap's path runs through dicts, cells, tracebacks and tables that nobody types. Here neighbours
are joined into the steps that people know (`runner.pooling_runner.model`), and what no expression
reaches is said in words (`frame serve() line 88: batch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import NamedTuple

from ._contexts import task_name, thread_name
from ._cut import Reference
from ._locals import code_name, frame_of, place
from ._look import (
    full_type_name,
    is_a,
    key_text,
    module_dict,
    module_value,
    namespace_of,
    plain,
    type_name,
)
from ._reference import references
from ._tensors import graph_reference, has_graph, is_storage, is_tensor, is_view

_LONGEST_CHARACTERS = 100
_FARTHEST_HOPS = 5
_CO_OPTIMIZED = 0x1
_GRAPH_OF = "autograd graph of "
_WORDS = {
    GeneratorType: "generator",
    CoroutineType: "coroutine",
    AsyncGeneratorType: "async generator",
}


class Root(NamedTuple):
    """Where a path begins: "modules", "frame", "exception", "interpreter", "native" or "frozen",
    and the name of the module, of the thread, or of what it is."""

    kind: str
    name: str


class Edge(NamedTuple):
    """One step of a path: from `objects[start]` to `objects[end]`, with the plumbing in between."""

    start: int
    end: int
    reference: Reference


class _Text:
    """A path in the making: places in words, then an expression inside the last of them."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.parts: list[str] = []
        self.remark = ""
        self.line: int | None = None
        self.said_cell = False
        self.in_loop = False
        self.open_task: str | None = None

    def enter(self, words: str) -> None:
        """Go into a frame, generator or task; what follows is an expression there."""
        if self.parts:
            self.places.append("".join(self.parts))
        self.places.append(words)
        self.parts = []

    def restart(self, *parts: str) -> None:
        """Begin anew at something that has a name of its own."""
        self.places, self.parts = [], list(parts)
        self.in_loop = False
        self.open_task = None

    def add(self, step: str) -> None:
        """Continue the expression."""
        self.parts.append(step.lstrip(".") if not self.parts and step.startswith(".") else step)

    def expression(self) -> str:
        return "".join(self.parts)

    def pieces(self) -> list[str]:
        places = ", ".join(self.places)
        remark = [self.remark] if self.remark else []
        if not self.parts:
            return [places, *remark]
        return [*([places + ": "] if places else []), *self.parts, *remark]


def path_text(
    root: Root,
    objects: Sequence[object],
    limit: int | None = None,
    last: Reference | None = None,
) -> str:
    """The path from `root` along `objects`, which begin with the root object itself.

    Paths of more than `limit` characters (100) keep both ends around "…". `last` is which of several
    references to the last object is meant; the nearest, if none is given.
    """
    text = _write(root, objects, _with_last(path_edges(objects), last))
    return _shorten(text.pieces(), _LONGEST_CHARACTERS if limit is None else limit)


def path_verb(root: Root, objects: Sequence[object], last: Reference | None = None) -> str | None:
    """What a person does to cut the last reference of a path, or None where it cannot be cut."""
    edges = _with_last(path_edges(objects), last)
    if not edges:
        return None
    reference = edges[-1].reference
    if reference.kind in ("local", "stack", "frame"):
        outer = _outer_verb(root, objects, edges)
        if outer is not None:
            return outer
    if reference.verb is None:
        return None
    path = _write(root, objects, edges)
    holder = _write(root, objects[: edges[-1].start + 1], edges[:-1])
    name = holder.expression()
    if "{holder}" in reference.verb and not name:
        name = "the " + (holder.places[-1] if holder.places else type_name(type(objects[0])))
        return reference.verb.format(path=path.expression(), holder=name)
    words = reference.verb.format(path=path.expression(), holder=name)
    inside = path.places if "{path}" in reference.verb else holder.places
    return f"{words} in {', '.join(inside)}" if inside else words


def way_to_cut(root: Root, objects: Sequence[object]) -> str | None:
    """What a person does to cut a path, as near to its end as that can be done."""
    for edge in reversed(path_edges(objects)):
        way = objects[: edge.end + 1]
        # Elements go last first: each that goes moves those behind it.
        verbs = [path_verb(root, way, last) for last in reversed(last_references(way))]
        known = dict.fromkeys(verb for verb in verbs if verb is not None)
        if known:
            return "; ".join(known)
    return None


def _with_last(edges: list[Edge], last: Reference | None) -> list[Edge]:
    if edges and last is not None:
        edges[-1] = edges[-1]._replace(reference=last)
    return edges


def holder_of(objects: Sequence[object]) -> object:
    """Who holds the last object of a path, as people see it: an instance, not its dict."""
    edges = path_edges(objects)
    return objects[edges[-1].start] if edges else objects[0]


def last_references(objects: Sequence[object]) -> list[Reference]:
    """Every reference by which the last but one of a path holds the last: it may have several."""
    edges = path_edges(objects)
    if not edges:
        return []
    start, end, nearest = edges[-1]
    between = {id(plumbing) for plumbing in objects[start + 1 : end]}
    found = references(objects[start], objects[end])
    same = [one for one in found if between <= set(one.via) and one.can_cut]
    return same or [nearest]


def _outer_verb(root: Root, objects: Sequence[object], edges: list[Edge]) -> str | None:
    """Variables of code that a task or a traceback keeps go when that lets go of the code."""
    for at in range(len(edges) - 1, -1, -1):
        edge = edges[at]
        name = task_name(objects[edge.start])
        if name is not None:
            return f"cancel task {name!r}"
        if edge.reference.kind == "traceback" and is_a(objects[edge.start], BaseException):
            if root.kind == "exception" and edge.start == 0:
                return "leave the except block"
            holder = _write(root, objects[: edge.start + 1], edges[:at])
            if holder.parts and not holder.places:
                return f"{holder.expression()}.__traceback__ = None"
    return None


def path_edges(objects: Sequence[object]) -> list[Edge]:
    """The path as references that people know, each as far as one reaches."""
    edges: list[Edge] = []
    start = 0
    while start < len(objects) - 1:
        edge = _farthest(objects, start)
        edges.append(edge)
        start = edge.end
    return edges


def _farthest(objects: Sequence[object], start: int) -> Edge:
    holder = objects[start]
    last = min(start + _FARTHEST_HOPS, len(objects) - 1)
    for end in range(last, start, -1):
        between = {id(plumbing) for plumbing in objects[start + 1 : end]}
        for reference in references(holder, objects[end]):
            if between <= set(reference.via):
                return Edge(start, end, reference)
    return Edge(start, start + 1, _unseen(holder, objects[start + 1]))


def _unseen(holder: object, held: object) -> Reference:
    """A reference that the walk was told of and Python cannot see."""
    if is_tensor(held) and has_graph(holder):
        return graph_reference(holder)
    if is_tensor(holder) and is_storage(held):
        return Reference("", "storage", why_not="a tensor keeps its storage: let the tensor go")
    if type(holder) is FrameType:
        return Reference(": (a value in use)", "stack", why_not="let the function return")
    name = full_type_name(type(holder))
    return Reference(f" (inside {name})", "hidden", why_not=f"no name leads into {name}")


def _write(root: Root, objects: Sequence[object], edges: Sequence[Edge]) -> _Text:
    text = _Text()
    _begin(text, root, objects[0])
    for edge in edges:
        _arrive(text, objects[edge.start])
        _step(text, objects[edge.start], objects[edge.end], edge.reference)
    last = objects[edges[-1].end] if edges else objects[0]
    _finish(text, last, edges[-1].reference if edges else None)
    return text


def _begin(text: _Text, root: Root, first: object) -> None:
    if root.kind == "modules":
        if first is not _sys_modules():
            _at_module(text, root.name)
    elif root.kind == "frame":
        if type(first) is not FrameType:
            text.restart(f"thread {root.name!r}")
        elif not _is_module_frame(first):
            text.enter(_thread_prefix(root.name) + f"frame {place(first)}")
    elif root.kind == "exception":
        name = type_name(type(first))
        text.restart(_thread_prefix(root.name) + f"exception {name} being handled")
    elif root.kind == "frozen":
        text.restart(f"frozen {root.name or type_name(type(first))}")
    elif root.kind == "native":
        text.restart(f"native code's {type_name(type(first))}")
    else:
        text.restart(root.name)


def _sys_modules() -> object:
    import sys

    return sys.modules


def _thread_prefix(name: str) -> str:
    return "" if name in ("", "MainThread") else f"thread {name!r} "


def _at_module(text: _Text, name: str) -> None:
    text.restart(*([] if name == "__main__" else [name]))


def _is_module_frame(frame: FrameType) -> bool:
    """Whether the variables of this frame are the names of a module."""
    optimised = frame.f_code.co_flags & _CO_OPTIMIZED
    return not optimised and frame.f_locals is frame.f_globals


def _arrive(text: _Text, holder: object) -> None:
    """Things with a name of their own begin the path anew: how else one came there is no matter."""
    if is_a(holder, ModuleType):
        name = namespace_of(module_dict(holder))  # type: ignore[arg-type]
        if name is not None:
            _at_module(text, name)
    elif type(holder) is dict:
        name = namespace_of(holder)
        if name is not None:
            _at_module(text, name)
    elif thread_name(holder) is not None and text.expression().startswith("threading._active["):
        text.restart(f"thread {thread_name(holder)!r}")


def _step(text: _Text, holder: object, held: object, reference: Reference) -> None:
    kind, step = reference.kind, reference.step
    named_cell, text.said_cell = text.said_cell, False
    if _is_loop_part(holder):
        text.in_loop = True
    if kind in ("local", "stack"):
        _enter_scope(text, holder)
        name = step.removeprefix(": ")
        in_module = bool(text.parts)  # a module's frame: its variables are the module's names
        text.add(f".{name}" if in_module else name)
        text.said_cell = type(held) is CellType
    elif kind == "frame" or kind == "caller":
        text.line = holder.tb_lineno if type(holder) is TracebackType else text.line
        if type(holder) is not TracebackType:
            _enter_task(text, holder)
        if kind == "caller" and text.places:
            text.places.pop()
            text.enter(f"frame {place(held)}")  # type: ignore[arg-type]
    elif kind == "traceback":
        pass
    elif kind == "coroutine" or kind == "awaits":
        if task_name(holder) is not None:
            _enter_task(text, holder)
    elif kind == "autograd graph":
        if text.parts[:1] != [_GRAPH_OF]:
            text.parts = [_GRAPH_OF, *text.parts]
    elif kind == "item" and type(holder) is dict and namespace_of(holder) is not None:
        text.add(f".{step[2:-2]}" if step[2:-2].isidentifier() else step)
    elif type(holder) is CellType and named_cell:
        pass
    elif kind == "cell":
        text.add(step)
        text.said_cell = True
    else:
        text.add(step)


def _is_loop_part(value: object) -> bool:
    """Whether this belongs to an event loop: nobody looks for a task there."""
    for module, name in (("asyncio.events", "AbstractEventLoop"), ("asyncio.events", "Handle")):
        base = module_value(module, name)
        if base is not None and is_a(value, base):
            return True
    future = module_value("_asyncio", "Future")
    return future is not None and is_a(value, future) and task_name(value) is None


def _enter_task(text: _Text, holder: object) -> None:
    name = task_name(holder)
    if name is None:
        return
    if text.in_loop:
        text.restart()
    text.open_task = name


def _enter_scope(text: _Text, holder: object) -> None:
    """Say which frame, generator or task the variable that follows belongs to."""
    frame = frame_of(holder)
    if frame is None:
        return
    where = place(frame, text.line)
    text.line = None
    if type(holder) is FrameType:
        if text.places and not text.parts and text.places[-1].endswith(f"frame {where}"):
            return  # the root was this frame
        if _is_module_frame(holder):
            name = namespace_of(holder.f_globals)
            if name is not None:
                _at_module(text, name)
                return
        word = "frame"
    else:
        word = _WORDS[type(holder)]
    if text.open_task is not None:
        word, text.open_task = f"task {text.open_task!r}", None
    text.enter(f"{word} {where}")


def _finish(text: _Text, last: object, reference: Reference | None) -> None:
    """What is left to say about the object at the end."""
    if text.open_task is not None:
        text.enter(f"task {text.open_task!r}")
    if reference is not None and reference.kind == "traceback":
        text.add(".__traceback__")
    elif type(last) is FrameType and reference is not None and reference.kind == "frame":
        text.enter(f"frame {place(last, text.line)}")
    elif reference is not None and reference.kind != "view" and is_tensor(last) and is_view(last):
        text.remark = " (view)"
    elif not text.places and not text.parts:
        text.add(_bare(last))


def _bare(value: object) -> str:
    """The name of a root that has no expression."""
    if is_a(value, ModuleType):
        return namespace_of(module_dict(value)) or "module"  # type: ignore[arg-type]
    if type(value) is dict:
        return namespace_of(value) or key_text(value)
    frame = frame_of(value)
    if frame is not None:
        return f"frame {code_name(frame.f_code)}"
    return f"<{plain(type_name(type(value)))}>"


def _shorten(pieces: list[str], limit: int) -> str:
    """Both ends of a long path: where it starts and what is at its end say the most."""
    whole = "".join(pieces)
    if len(whole) <= limit:
        return whole
    head, tail = [pieces[0]], [pieces[-1]]
    middle = pieces[1:-1]
    room = limit - 1 - len(pieces[0]) - len(pieces[-1])
    while middle:
        # The end is nearer to what was asked for: it gets its piece first.
        from_end = len("".join(tail)) <= len("".join(head))
        piece = middle[-1] if from_end else middle[0]
        if len(piece) > room:
            break
        room -= len(piece)
        (tail.insert(0, middle.pop()) if from_end else head.append(middle.pop(0)))
    if middle and room >= 0:
        return "".join(head) + "…" + "".join(tail)
    half = (limit - 1) // 2
    return whole[:half] + "…" + whole[-half:]
