"""What a shutdown of an object drops, and in which order.

It drops only references that the object itself has: attributes, parts and items that lead to device
memory. What only those references reach is freed with them. What somebody else holds too stays
untouched, and is named.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from ._native import HeapPath, leads_to, referents
from ._torch import torch
from ._why.alone import EXAMINING
from ._why.named_path import NamedPath
from ._why.path_text import Root
from ._why.question import Question
from ._why.references.look import instance_dict, type_name
from ._why.references.readers import references
from ._why.references.reference import Reference

_PARTS = ("_parameters", "_buffers", "_modules")


class PlanStep:
    """One reference to drop: its path, the bytes that no earlier step leads to, and the cut."""

    __slots__ = ("_references", "bytes", "path")

    def __init__(self, path: str, size: int, references: list[Reference]) -> None:
        self.path = path
        self.bytes: int | None = size
        self._references = references

    def cut(self) -> None:
        """Drops it. Afterwards this step holds nothing of what it led to."""
        while self._references:
            self._references.pop().cut()


class Plan:
    """What to drop, wrappers first. `tensors` are weak references: they show what has survived."""

    __slots__ = ("freed_bytes", "name", "stays", "steps", "tensors")

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[PlanStep] = []
        self.tensors: list[weakref.ref[object]] = []
        self.stays: list[weakref.ref[object]] = []
        self.freed_bytes = 0


def plan(owner: object, also: Iterable[object] = ()) -> Plan:
    """Returns what a shutdown of `owner` drops. `also` are objects that it may treat as its own."""
    with EXAMINING:
        return _plan([owner, *also])


def _plan(owners: list[object]) -> Plan:
    places: list[object] = []
    for one in owners:
        places += _places(one)
    known = {id(place) for place in places}
    values: list[object] = []
    for place in places:
        for value in referents(place):
            if id(value) not in known and not isinstance(value, type):
                known.add(id(value))
                values.append(value)
    question = Question(owners)
    found = leads_to(question, places, values)
    del question, places
    made = Plan(_name(found.path, owners[0]))
    made.freed_bytes = found.freed_bytes
    made.tensors = _weak(found.tensors)
    made.stays = _weak(found.stays)
    leads = found.by_value
    for at in found.order:
        lead = leads[at]
        if lead.tensors == 0:
            continue
        for number, one in enumerate(owners):
            ways = [way for way in references(one, values[at]) if way.can_cut]
            if ways:
                name = made.name if number == 0 else type_name(type(one))
                made.steps.append(PlanStep(name + ways[0].step, lead.bytes, ways))
    return made


def _places(owner: object) -> list[object]:
    """Returns where an object keeps what it has: itself, its dict, the tables of a module's parts."""
    places: list[object] = [owner]
    attributes = instance_dict(owner)
    if attributes is None:
        return places
    places.append(attributes)
    module = torch()
    if module is not None and isinstance(owner, module.nn.Module):
        tables = [dict.get(attributes, name) for name in _PARTS]
        places += [table for table in tables if isinstance(table, dict)]
    return places


def _name(path: HeapPath | None, owner: object) -> str:
    if path is None:
        return type_name(type(owner))
    text = NamedPath(Root(path.root, ""), path.objects).text()
    # Only the variable matters here, not in which frame it is.
    return text.rsplit(": ", 1)[-1]


def _weak(objects: list[object]) -> list[weakref.ref[object]]:
    found = []
    for one in objects:
        try:
            found.append(weakref.ref(one))
        except TypeError:
            continue  # Whether it survives cannot be seen; the driver's number shows it.
    return found


def alive(references: list[weakref.ref[object]]) -> list[object]:
    """Returns the objects that are still there."""
    return [one for one in (reference() for reference in references) if one is not None]
