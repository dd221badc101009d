"""A path from a root to an object, as the references that people know.

The heap's path runs through dicts, cells, tracebacks and tables that nobody types. Here neighbours
are joined into the steps of an expression (`runner.pooling_runner.model`).

A linked list of a million elements is a path of a million links. To find the name of a reference
takes many questions; to see that it has the same name as one before takes one. Equal links that
follow each other become one edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, count, repeat
from operator import is_not
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from ..._native import referents
from ..references.look import (
    descriptor,
    dict_reader,
    full_type_name,
    is_a,
    is_name,
    namespace_of,
)
from ..references.readers import references
from ..references.reference import Reference
from ..references.tensors import graph_reference, has_graph, is_storage, is_tensor

_FARTHEST_HOPS = 5
_MOST_LED_TO = 10_000
_MOST_WAYS = 8
_MANY_TIMES = 8


class Edge(NamedTuple):
    """Steps of a path: from `objects[start]` to `objects[end]`, past the objects in between.

    It is one step, or the same step `times` times.
    """

    start: int
    end: int
    reference: Reference
    times: int = 1

    @property
    def last(self) -> int:
        """The position of the holder of the last step."""
        return self.end - (self.end - self.start) // self.times


def path_edges(objects: Sequence[object]) -> list[Edge]:
    """Returns the path as references that people know, each as long as possible."""
    edges: list[Edge] = []
    ways: dict[int, list[_Way]] = {}
    last, start = len(objects) - 1, 0
    while start < last:
        holder = objects[start]
        known = ways.setdefault(id(type(holder)), [])
        for way in known:
            end = start + way.hops
            # The last step is looked at closely: it may be cut.
            if end < last and way.leads(holder, objects[end]):
                before = edges[-1]
                if before.reference is way.reference and before.end == start:
                    times = 1 if before.times < _MANY_TIMES else way.times(objects, start, last)
                    end = start + times * way.hops
                    edges[-1] = Edge(before.start, end, way.reference, before.times + times)
                else:
                    edges.append(Edge(start, end, way.reference))
                break
        else:
            edge = _farthest(objects, start)
            edges.append(edge)
            end = edge.end
            new = _way(holder, edge)
            known[:] = [*([] if new is None else [new]), *known][:_MOST_WAYS]
        start = end
    return edges


Get = Callable[[Any], Iterator[object]]
"""Takes the same step from each of some holders."""


class _Way:
    """A step that was taken, to see how often it can be taken again from holders of the same type."""

    __slots__ = ("_class", "_get", "hops", "reference")

    def __init__(self, holder: object, edge: Edge, get: Get) -> None:
        self.reference = edge.reference
        self.hops = edge.end - edge.start
        self._class = type(holder)
        self._get = get

    def leads(self, holder: object, held: object) -> bool:
        """Returns whether the step leads from one object of the type to another."""
        try:
            return next(self._get((holder,))) is held
        except (AttributeError, IndexError, TypeError, SystemError):
            return False

    def times(self, objects: Sequence[object], start: int, last: int) -> int:
        """Returns how often the same step leads on from `objects[start]`, short of `objects[last]`.

        No Python runs for each of a million steps. The windows grow, as most steps are taken once."""
        hops, times, window = self.hops, 0, 1
        while window := min(window, (last - 1 - start) // hops - times):
            begin = start + times * hops
            end = begin + window * hops
            holders = objects[begin:end:hops]
            same = _first(map(is_not, map(type, holders), repeat(self._class)), window)
            try:
                held = self._get(holders[:same])
                led = _first(map(is_not, held, objects[begin + hops : end + 1 : hops]), same)
            except (AttributeError, IndexError, TypeError, SystemError):
                led = 0
            times += led
            if led < window and (led or window == 1):
                return times
            window = window * 8 if led else 1
        return times


def _first(tests: Iterable[bool], most: int) -> int:
    """Returns where the first of some tests is true, or `most`."""
    return next(compress(count(), tests), most)


def _way(holder: Any, edge: Edge) -> _Way | None:
    """Returns a quick way to take the same step, or None if there is none."""
    cls, kind, step = type(holder), edge.reference.kind, edge.reference.step
    hops = edge.end - edge.start
    if kind == "attribute" and is_name(step[1:]) and not is_a(holder, ModuleType):
        entry = descriptor(holder, step[1:])
        if type(entry) is MemberDescriptorType and hops == 1:
            return _Way(holder, edge, lambda holders: map(entry.__get__, holders))
        if entry is None and dict_reader(cls) is not None and hops <= 2:
            # Without an entry in the class this looks into the dict, and creates none.
            read = object.__getattribute__
            return _Way(holder, edge, lambda holders: map(read, holders, repeat(step[1:])))
    if kind == "item" and cls is dict and hops == 1:
        keys = [key for key in holder if type(key) is str and f"[{key!r}]" == step]
        if keys:
            return _Way(holder, edge, lambda holders: map(dict.get, holders, repeat(keys[0])))
    if kind == "element" and (cls is list or cls is tuple) and hops == 1 and step[1:-1].isdecimal():
        at = int(step[1:-1])
        return _Way(holder, edge, lambda holders: map(cls.__getitem__, holders, repeat(at)))
    return None


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
    """Returns a reference that the walk knows of and Python cannot see."""
    if has_graph(holder) and not is_storage(held):
        return graph_reference(holder)
    if is_tensor(holder) and is_storage(held):
        return Reference("", "storage", why_not="a tensor keeps its storage: drop the tensor")
    if type(holder) is FrameType:
        return Reference(": (a value in use)", "stack", why_not="let the function return")
    name = full_type_name(type(holder))
    return Reference(f" (inside {name})", "hidden", why_not=f"no name leads into {name}")


def last_references(objects: Sequence[object], edges: Sequence[Edge]) -> list[Reference]:
    """Returns every reference by which the last but one object of a path holds the last."""
    if not edges:
        return []
    start, end, nearest = edges[-1].last, edges[-1].end, edges[-1].reference
    between = {id(plumbing) for plumbing in objects[start + 1 : end]}
    found = references(objects[start], objects[end])
    same = [one for one in found if between <= set(one.via) and one.can_cut]
    return same or [nearest]


def without_way_back(reference: Reference, target: object) -> Reference:
    """Returns the reference; or, if it is cut by putting back something that leads to the target, as one
    that is cut without that."""
    if reference.instead is None:
        return reference
    plain, put_back = reference.instead
    return plain if _leads(put_back, target) else reference


def _leads(value: object, target: object) -> bool:
    """Returns whether an object leads to another, past modules, classes and running code. Of an object
    that leads to very many it is assumed."""
    seen, waiting = {id(value)}, [value]
    while waiting:
        at = waiting.pop()
        if at is target:
            return True
        if is_a(at, ModuleType) or is_a(at, type) or type(at) is FrameType:
            continue
        if type(at) is dict and namespace_of(at) is not None:
            continue
        if type(at) is FunctionType:
            # Since Python 3.14 what computes the annotations of a method has the dict of its class.
            names = zip(at.__code__.co_freevars, at.__closure__ or ())
            seen.update(id(cell) for name, cell in names if name == "__classdict__")
        for one in referents(at):
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
        if len(seen) > _MOST_LED_TO:
            return True
    return False
