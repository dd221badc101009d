"""A stand-in for `lowtide._why`, for tests of releases alone: it cuts every attribute of an object that
leads to a tensor, found by the collector's own links, and names survivors by who refers to them.

It is used only where the real one is not there.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch


class Step:
    def __init__(self, holder: dict[str, Any], name: str, path: str, size: int) -> None:
        self.holder, self.name, self.path, self.bytes = holder, name, path, size

    def cut(self) -> None:
        self.holder[self.name] = None


class Plan:
    def __init__(self, steps: list[Step], tensors: list[Any]) -> None:
        self.steps, self.tensors = steps, tensors


def _tensors(start: object) -> list[Any]:
    found, seen, todo = [], set(), [start]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, (type, type(gc))):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.append(one)
        else:
            todo += gc.get_referents(one)
    return found


def plan(obj: object, also: Any = ()) -> Plan:
    steps: list[Step] = []
    tensors: list[Any] = []
    for one in (obj, *also):
        title = type(one).__name__
        for name, value in reversed(list(vars(one).items())):
            held = _tensors(value)
            if held:
                size = sum(tensor.nbytes for tensor in held)
                steps.append(Step(vars(one), name, f"{title}.{name}", size))
                tensors += [weakref.ref(tensor) for tensor in held]
    return Plan(steps, tensors)


def holders(survivors: list[Any]) -> list[tuple[str, str, int, int | None]]:
    told = []
    for tensor in survivors:
        who = [one for one in gc.get_referrers(tensor) if one is not survivors]
        named = [one for one in who if isinstance(one, (dict, list, tuple))]
        path = f"{len(named)} container(s)" if named else "somebody"
        told.append((path, f"a tensor of {tensor.nbytes} bytes", max(len(named), 1), tensor.nbytes))
    return told


def why(target: object = None, device: object = None) -> str:
    """Who holds it, in words."""
    return "held by somebody (stand-in)"
