"""A path with its names: the text of it, and what a person does to cut it.

The references along the path are looked up once. That matters: to find an object in a container of
a million elements, all of them are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._native import printable
from .path import Edge, last_references, path_edges
from .path_text import LONGEST_CHARACTERS, PathText, Root, shorten, write
from .references.contexts import task_name
from .references.look import is_a, type_name
from .references.reference import Reference

_OF_CODE = ("local", "stack", "frame")
"""Kinds of references that a task or a traceback may keep."""


class NamedPath:
    """The path from `root` along `objects`, which begin with the root object itself."""

    __slots__ = ("_edges", "_objects", "_root")

    def __init__(
        self, root: Root, objects: Sequence[object], edges: list[Edge] | None = None
    ) -> None:
        self._root = root
        self._objects = objects
        self._edges = path_edges(objects) if edges is None else edges

    def text(self, last: Reference | None = None, *, limit: int = LONGEST_CHARACTERS) -> str:
        """Returns the path as text, shortened in the middle if it has more than `limit` characters.

        `last` selects one of several references to the last object; by default the nearest.
        """
        pieces = self._write(self._edges_to(last)).pieces()
        return shorten([printable(piece) for piece in pieces], limit)

    def verb(self, last: Reference | None = None) -> str | None:
        """Returns what a person does to cut the last reference, or None if nothing can be done."""
        words = self._verb(last)
        return None if words is None else printable(words)

    def _verb(self, last: Reference | None) -> str | None:
        edges = self._edges_to(last)
        if not edges:
            return None
        reference = edges[-1].reference
        if reference.kind in _OF_CODE:
            outer = self._outer_verb(edges)
            if outer is not None:
                return outer
        if reference.verb is None:
            return None
        path, holder = self._write(edges), self._write(edges[:-1])
        name = holder.expression()
        if "{holder}" in reference.verb and not name:
            first = type_name(type(self._objects[0]))
            name = "the " + (holder.places[-1] if holder.places else first)
            return reference.verb.format(path=path.expression(), holder=name)
        words = reference.verb.format(path=path.expression(), holder=name)
        inside = path.places if "{path}" in reference.verb else holder.places
        return f"{words} in {', '.join(inside)}" if inside else words

    def cut(self) -> str | None:
        """Returns what a person does to cut the path, as near to its end as possible."""
        for number in range(len(self._edges), 0, -1):
            found = last_references(self._objects, self._edges[number - 1 : number])
            if not any(one.verb is not None or one.kind in _OF_CODE for one in found):
                continue
            part = NamedPath(self._root, self._objects, self._edges[:number])
            # The last element first: deleting one moves those behind it.
            verbs = [part.verb(last) for last in reversed(found)]
            known = dict.fromkeys(verb for verb in verbs if verb is not None)
            if known:
                return "; ".join(known)
        return None

    def holder(self) -> object:
        """Returns the holder of the last object as people see it: an instance, not its dict."""
        return self._objects[self._edges[-1].last if self._edges else 0]

    def last_references(self) -> list[Reference]:
        """Returns every reference by which the last but one object holds the last."""
        return last_references(self._objects, self._edges)

    def _edges_to(self, last: Reference | None) -> list[Edge]:
        """Returns the edges with `last` as the reference of the last one, which is a single step."""
        if not self._edges:
            return self._edges
        edge = self._edges[-1]
        if edge.times > 1:
            before = [edge._replace(end=edge.last, times=edge.times - 1)]
        elif last is None:
            return self._edges
        else:
            before = []
        reference = edge.reference if last is None else last
        return [*self._edges[:-1], *before, Edge(edge.last, edge.end, reference)]

    def _write(self, edges: list[Edge]) -> PathText:
        return write(self._root, self._objects, edges)

    def _outer_verb(self, edges: list[Edge]) -> str | None:
        """Returns how to free the variables of code that a task or a traceback keeps."""
        for at in range(len(edges) - 1, -1, -1):
            edge = edges[at]
            name = task_name(self._objects[edge.start])
            if name is not None:
                return f"cancel task {name!r}"
            if edge.reference.kind == "traceback":
                if not is_a(self._objects[edge.start], BaseException):
                    continue
                if self._root.kind == "exception" and edge.start == 0:
                    return "leave the except block"
                holder = self._write(edges[:at])
                if holder.parts and not holder.places:
                    return f"{holder.expression()}.__traceback__ = None"
        return None
