"""A path from a root to an object, as the references that people know.

The heap's path runs through dicts, cells, tracebacks and tables that nobody types. Here neighbours
are joined into the steps of an expression (`runner.pooling_runner.model`).

A linked list of a million elements is a path of a million links. To find the name of a reference
takes many questions; to see that it has the same name as the one before takes one. Equal links that
follow each other become one edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from ..._native import referents
from ..references.look import (
    Read,
    descriptor,
    dict_reader,
    full_type_name,
    is_a,
    is_name,
    namespace_of,
    pairs,
)
from ..references.readers import references
from ..references.reference import Reference
from ..references.tensors import graph_reference, has_graph, is_storage, is_tensor

_FARTHEST_HOPS = 5
_MOST_LED_TO = 10_000


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
    ways: dict[int, _Way | None] = {}
    last, start = len(objects) - 1, 0
    while start < last:
        holder = objects[start]
        way = ways.get(id(type(holder)))
        # The last step is looked at closely: it may be cut.
        if way is not None and start + way.hops < last and way.leads(objects, start):
            before = edges[-1]
            end = start + way.hops
            if before.reference is way.reference and before.end == start:
                edges[-1] = Edge(before.start, end, way.reference, before.times + 1)
            else:
                edges.append(Edge(start, end, way.reference))
        else:
            edge = _farthest(objects, start)
            edges.append(edge)
            end = edge.end
            ways[id(type(holder))] = _way(holder, edge)
        start = end
    return edges


Test = Callable[[Any, object], bool]


class _Way:
    """A step that was taken, to see whether it can be taken again from a holder of the same type."""

    __slots__ = ("_is_it", "_passes_dict", "hops", "reference")

    def __init__(self, edge: Edge, is_it: Test, dict_of: Read | None = None) -> None:
        self.reference = edge.reference
        self.hops = edge.end - edge.start
        self._is_it = is_it
        self._passes_dict = dict_of

    def leads(self, objects: Sequence[object], start: int) -> bool:
        """Returns whether the same step leads from `objects[start]` along the path."""
        if self._passes_dict is not None and objects[start + 1] is not self._passes_dict(
            objects[start]
        ):
            return False
        return self._is_it(objects[start], objects[start + self.hops])


def _way(holder: object, edge: Edge) -> _Way | None:
    """Returns a quick test for the same step, or None if there is none."""
    kind, step, hops = edge.reference.kind, edge.reference.step, edge.end - edge.start
    if kind == "attribute" and is_name(step[1:]) and not is_a(holder, ModuleType):
        member = descriptor(holder, step[1:]) if hops == 1 else None
        if type(member) is MemberDescriptorType:
            return _Way(edge, lambda holder, held: _member(member, holder) is held)
        read = dict_reader(type(holder))
        if read is not None and hops <= 2:
            return _Way(edge, _attribute_test(read, step[1:]), read if hops == 2 else None)
    if hops > 1:
        return None
    if kind == "item" and type(holder) is dict:
        return _Way(edge, lambda holder, held: _has_item(holder, step, held))
    if (
        kind == "element"
        and (type(holder) is list or type(holder) is tuple)
        and step[1:-1].isdecimal()
    ):
        at = int(step[1:-1])
        return _Way(edge, lambda holder, held: at < len(holder) and holder[at] is held)
    return None


def _member(member: MemberDescriptorType, holder: object) -> object:
    try:
        return member.__get__(holder, type(holder))
    except (AttributeError, TypeError, SystemError):
        return None


def _attribute_test(read: Read, name: str) -> Test:
    def test(holder: object, held: object) -> bool:
        attributes = read(holder)
        if attributes is None:
            return False
        for key, value in pairs(attributes):
            if value is held:
                return type(key) is str and key == name
        return False

    return test


def _has_item(holder: Any, step: str, held: object) -> bool:
    for key, value in pairs(holder):
        if value is held:
            # The namespace of a module begins a path anew.
            is_same = type(key) is str and f"[{key!r}]" == step
            return is_same and namespace_of(holder) is None
    return False


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
