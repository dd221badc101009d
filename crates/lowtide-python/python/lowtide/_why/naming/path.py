"""A path with its names: the text of it, and the statement that cuts it.

The references along the path are looked up once. That matters: to find an object in a container of
a million elements, all of them are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, count, product
from types import ModuleType

from ..._native import printable
from .. import rare
from ..interpreter import of_native
from ..references.contexts import task_name
from ..references.look import AnyDict, is_a, is_name, module_value, namespace_of
from ..references.reference import Reference
from ..references.shell import FAILED_CELL
from ..references.tensors import DETACH, has_gradient_graph, is_tensor, is_view, number_of
from .code import Code, Names, Statement, fill, is_readable
from .edges import Edge, last_references, path_edges, without_way_back
from .words import Root, write

_OF_CODE = ("local", "stack", "frame", "awaits", "coroutine")
_GUTTING = ("closure", "cell", "argument")
"""References that a function fails without. Its holder is cut instead, where that is possible."""
_PUT = ("attribute", "element", "hook", "item")
"""References by which a function is registered somewhere."""
_REGISTERED = (
    "cache entry",
    "cache",
    "greenlet",
    "registered hook",
    "scheduled call",
    "queued",
    FAILED_CELL,
)
"""Entries that are dropped as a whole."""


class NamedPath:
    """The path from `root` along `objects`, which begin with the root object itself.

    `scope` is the namespace in which statements will run.
    """

    __slots__ = ("_known_edges", "_names", "_objects", "_root", "_scope")

    def __init__(
        self,
        root: Root,
        objects: Sequence[object],
        edges: list[Edge] | None = None,
        scope: AnyDict | None = None,
        names: Names | None = None,
    ) -> None:
        self._root = root
        self._objects = objects
        self._known_edges = edges
        self._scope = scope
        self._names = names or Names(objects, scope)

    @property
    def _edges(self) -> list[Edge]:
        if self._known_edges is None:
            self._known_edges = path_edges(self._objects)
        return self._known_edges

    def steps(self) -> int:
        """Returns how many steps a person has to take."""
        return len(self._edges)

    def _part(self, number: int) -> NamedPath:
        """Returns the part of the path with so many edges."""
        edges = self._edges[:number]
        return NamedPath(self._root, self._objects, edges, self._scope, self._names)

    def text(self, last: Reference | None = None) -> str:
        """Returns the path as Python where Python can say it, else in words.

        `last` selects one of several references to the last object; by default the nearest.
        """
        edges = self._edges_to(last)
        code = self._names.expression(edges)
        if code is not None and is_readable(code.shown):
            kind = edges[-1].reference.kind if edges else "reference"
            if kind != "view" and is_tensor(self.held()) and is_view(self.held()):
                code = code._replace(remarks=(*code.remarks, "view"))
            return printable(code.text())
        return self._words(edges)

    def code(self) -> Code | None:
        """Returns the expression for the last object, or None if there is none."""
        return self._names.expression(self._edges)

    def before(self) -> NamedPath:
        """Returns the path to the last holder."""
        return self._part(len(self._edges) - 1) if self._edges else self

    def words(self, last: Reference | None = None) -> str:
        """Returns the path as a person would describe it."""
        return self._words(self._edges_to(last))

    def statement(self, last: Reference | None = None) -> Statement | None:
        """Returns the statement that cuts the last reference, or None if there is none."""
        return self._statement(self._edges_to(last))

    def by_hand(self, last: Reference | None = None) -> str:
        """Returns what a person does to cut the last reference, as a sentence."""
        edges = self._edges_to(last)
        words = self._words(edges)
        if self._root.kind == "exception" and edges and edges[0].reference.kind == "traceback":
            return f"leave the except block: {words}"
        task = self._task_of(edges)
        if task is not None:
            name = task_name(self._objects[edges[task].start])
            return printable(f"cancel task {name!r} and let its event loop run: {words}")
        is_fixed = all(edge.reference.verb is None for edge in edges)
        if self._root.kind == "native" and has_gradient_graph(self._objects[0]):
            return (
                "set .grad of the tensor to None before it goes: after backward(create_graph=True), "
                f"the gradient's graph holds the tensor in native code: {words}"
            )
        advice = rare.advice(self._root.name) if self._root.kind == "interpreter" else None
        if advice is not None:
            return f"{advice}: {words}"
        if self._root.kind == "native" and is_fixed:
            return f"{of_native(self._objects[0])} ({self._root.name}): {words}"
        if not edges:
            return f"drop what holds it: {words}"
        reference = edges[-1].reference
        if reference.why_not or not reference.can_cut:
            return printable(f"{reference.why_not or 'drop its holder'}: {words}")
        if self._root.kind == "native":
            return f"{of_native(self._objects[0])}: {words}"
        return f"drop its holder, since no Python expression leads there: {words}"

    def nearest(self) -> NamedPath | None:
        """Returns the part of the path whose end is to be cut, as near to its end as is gentle."""
        ways = product((_is_written, _can_cut), (True, False))
        each = (self._nearest(is_so, gentle) for is_so, gentle in ways)
        known = (part for part in each if part is not None)
        return self.entry(FAILED_CELL) or next(known, None)

    def _nearest(
        self, is_so: Callable[[NamedPath, Reference], bool], gentle: bool
    ) -> NamedPath | None:
        for number in range(len(self._edges), 0, -1):
            if gentle and self._guts(number):
                continue
            found = last_references(self._objects, self._edges[number - 1 : number])
            if is_so is _can_cut and not all(one.can_cut for one in found):
                continue
            part = self._part(number)
            if all(is_so(part, one) for one in part.last_references(self.held())):
                return part
        return None

    def _guts(self, number: int) -> bool:
        """Returns whether a function fails without what this edge leads to. One that a module or class
        has by name is called by others, and keeps its other arguments."""
        kind = self._edges[number - 1].reference.kind
        if kind in _GUTTING:
            return True
        if kind != "default" or number < 2:
            return False
        before = self._edges[number - 2]
        holder = self._objects[before.start]
        is_module = is_a(holder, ModuleType) or (
            type(holder) is dict and namespace_of(holder) is not None
        )
        return before.reference.kind in _PUT and not is_module

    def undo(self) -> rare.Undo | None:
        """Returns what unregisters the object with which this path begins, or None."""
        is_kept = self._root.kind == "interpreter"
        return rare.undo(self._root.name, self._objects[0]) if is_kept else None

    def entry(self, *kinds: str) -> NamedPath | None:
        """Returns the path to the outermost entry of a cache or queue on this path, or of these kinds, or None."""
        wanted = kinds or _REGISTERED
        are = (edge.reference.kind in wanted for edge in self._edges)
        at = next(compress(count(), are), None)
        return None if at is None else self._part(at + 1)

    def model(self) -> NamedPath | None:
        """Returns the path to the outermost model on this path whose parameter has the last object, or None."""
        kind = module_value("torch.nn", "Module")
        is_on_parameter = self._edges and is_tensor(self.holder())
        for number, edge in enumerate(self._edges if is_on_parameter and kind is not None else ()):
            if is_a(self._objects[edge.start], kind):
                return self._part(number)
        return None

    def last_name(self) -> str | None:
        """Returns the name of the attribute in which the last object is, or None."""
        step = self._edges[-1].reference.step if self._edges else ""
        return step[1:] if is_name(step[1:]) else None

    def is_inside_module(self) -> bool:
        """Returns whether the path leads over something that a module has in native code, without a name."""
        hidden = [edge for edge in self._edges if edge.reference.kind == "hidden"]
        return any(is_a(self._objects[edge.start], ModuleType) for edge in hidden)

    def holder(self) -> object:
        """Returns the holder of the last object as people see it: an instance, not its dict."""
        return self._objects[self._edges[-1].start if self._edges else 0]

    def passed(self) -> frozenset[int]:
        """Returns the ids of the objects over which the path leads."""
        last = self._edges[-1].start if self._edges else 0
        return frozenset(map(id, self._objects[: last + 1]))

    def held(self) -> object:
        """Returns the last object."""
        return self._objects[self._edges[-1].end if self._edges else 0]

    def last_references(self, target: object) -> list[Reference]:
        """Returns every reference by which the last but one object holds the last; each is cut so that
        nothing is put back that leads to the target."""
        found = last_references(self._objects, self._edges)
        return [without_way_back(one, target) for one in found]

    def _edges_to(self, last: Reference | None) -> list[Edge]:
        """Returns the edges with `last` as the reference of the last one."""
        if not self._edges or last is None:
            return self._edges
        return [*self._edges[:-1], self._edges[-1]._replace(reference=last)]

    def _words(self, edges: list[Edge]) -> str:
        return printable(write(self._root, self._objects, edges).text())

    def _statement(self, edges: list[Edge]) -> Statement | None:
        if not edges:
            return None
        task = self._task_of(edges)
        if task is not None:
            edges = edges[: task + 1]
        elif edges[-1].reference.kind in _OF_CODE:
            edges = self._outermost(edges)
        if edges[-1].start == 0 and self._root.kind == "interpreter":
            first, held = self._objects[0], self._objects[edges[-1].end]
            registered = rare.entry(self._root.name, first, held)
            if registered is not None:
                return fill(registered, None, None)
        reference = edges[-1].reference
        if reference.verb == DETACH and len(edges) > 1:
            reference = number_of(self._objects[edges[-1].start], reference, edges[-2].reference)
        holder = self._names.expression(edges[:-1])
        path = None if holder is None else holder.then(reference)
        return fill(reference, holder, path)

    def cutting(self, last: Reference | None) -> Reference | None:
        """Returns the reference that is cut: of a variable of a task's code, that of the task."""
        edges = self._edges_to(last)
        task = self._task_of(edges)
        return last if task is None else edges[task].reference

    def _task_of(self, edges: list[Edge]) -> int | None:
        """Returns the edge from a task to the code in which the last reference is, or None."""
        if not edges or edges[-1].reference.kind not in _OF_CODE:
            return None
        for at in range(len(edges) - 1, -1, -1):
            kind = edges[at].reference.kind
            if kind not in _OF_CODE:
                return None
            if kind == "coroutine" and task_name(self._objects[edges[at].start]) is not None:
                return at
        return None

    def _outermost(self, edges: list[Edge]) -> list[Edge]:
        """Returns the edges up to the code that waits for the code at the end: it is closed first."""
        at = len(edges)
        while at > 1 and edges[at - 2].reference.kind == "awaits":
            at -= 1
        return edges[:at]


def _is_written(part: NamedPath, last: Reference) -> bool:
    return (last.verb is not None or last.kind in _OF_CODE) and part.statement(last) is not None


def _can_cut(_: NamedPath, last: Reference) -> bool:
    return last.can_cut
