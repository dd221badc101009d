"""A path from a root to an object, as the references that people know.

The heap's path runs through dicts, cells, tracebacks and tables that nobody types. Here neighbours
are joined into the steps of an expression (`runner.pooling_runner.model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from .references.look import full_type_name
from .references.readers import references
from .references.reference import Reference
from .references.tensors import graph_reference, has_graph, is_storage, is_tensor

_FARTHEST_HOPS = 5


class Edge(NamedTuple):
    """One step of a path: from `objects[start]` to `objects[end]`, past the objects in between."""

    start: int
    end: int
    reference: Reference


def path_edges(objects: Sequence[object]) -> list[Edge]:
    """Returns the path as references that people know, each as long as possible."""
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
    """Returns a reference that the walk knows of and Python cannot see."""
    if is_tensor(held) and has_graph(holder):
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
