"""A path from a root to an object, as the references that people know.

The heap's path runs through dicts, cells, tracebacks and tables that nobody types. Here neighbours
are joined into the steps of an expression (`runner.pooling_runner.model`).

A linked list of a million elements is a path of a million links, and nobody would write them: of a long
path the middle is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType, FunctionType, ModuleType
from typing import NamedTuple

from ..._native import referents
from ..references.look import full_type_name, is_a, namespace_of
from ..references.readers import references
from ..references.reference import UNWRITTEN, Reference
from ..references.tensors import graph_reference, has_graph, is_storage, is_tensor

_FARTHEST_HOPS = 5
_MOST_LED_TO = 10_000
_LONGEST = 64
"""Of a path with more objects, only some of both ends are named."""
_BEGIN, _END = 12, 20


class Edge(NamedTuple):
    """A step of a path: from `objects[start]` to `objects[end]`, past the objects in between."""

    start: int
    end: int
    reference: Reference


def path_edges(objects: Sequence[object]) -> list[Edge]:
    """Returns the path as references that people know, each as long as possible."""
    edges: list[Edge] = []
    last, start = len(objects) - 1, 0
    middle = range(_BEGIN, last - _END if last > _LONGEST else 0)
    while start < last:
        if start in middle:
            edges.append(Edge(start, middle.stop, _left_out(middle.stop - start)))
        else:
            edges.append(_farthest(objects, start))
        start = edges[-1].end
    return edges


def _left_out(count: int) -> Reference:
    """Returns what stands for so many references. Nobody would write an expression with it."""
    step = f"{UNWRITTEN}{count:,} references{UNWRITTEN}"
    return Reference(step, "left out", why_not="drop its holder", reach=f"{{holder}}{step}")


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
    start, end, nearest = edges[-1]
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
