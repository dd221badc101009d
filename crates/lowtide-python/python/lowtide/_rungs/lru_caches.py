"""`functools.lru_cache`s that hold tensors of the device. Nothing else in Python looks into them.

Caches without such tensors are left alone, however large they are. What a cache holds is found by
following references from its entries, but not through modules, classes and functions: from those,
everything can be reached. No code of the program runs until a cache is cleared.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._devices.device import Device
from .._native import HookPoint, Touch, led_to, referents
from .._runtime.heap import objects_of
from .._why.memory.probe import bytes_on, candidate_types
from .._why.references.functions import LruCache as Wrapper
from .hook import Hook

# The search in a cache stops here. A cache of tensors has shown one long before.
MOST_OBJECTS = 50_000
# From these, everything can be reached, or nothing.
NOT_THROUGH = (
    types.ModuleType,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    Wrapper,
)


class CacheWithTensors(NamedTuple):
    """A cache that holds device memory."""

    cache: Any
    name: str
    bytes: int


class LruCaches(Hook):
    """Clears every `lru_cache` that holds tensors of the device."""

    point = HookPoint.CACHES
    costly = True
    name = "functools.lru_cache"

    def __init__(self, device: Device) -> None:
        self._device = device.name

    def expect(self) -> int | None:
        return sum(found.bytes for found in caches_with_tensors(self._device))

    def run(self, round: int) -> list[Touch]:
        touched: list[Touch] = []
        for found in caches_with_tensors(self._device):
            Wrapper.cache_clear(found.cache)
            touched.append(Touch(f"{found.name} (functools.lru_cache)", found.bytes))
        return touched


def caches_with_tensors(device: str) -> list[CacheWithTensors]:
    """Returns the caches that hold memory of a device."""
    found = []
    for cache in lru_caches():
        held = held_bytes(_entries(cache), device)
        if held > 0:
            found.append(CacheWithTensors(cache, name_of(cache), held))
    return found


_known: tuple[int, list[weakref.ref[Any]]] = (0, [])
"""How many references the type of the caches had when they were last looked for, and the caches: each has
one reference."""


def lru_caches() -> list[Any]:
    """Returns every `lru_cache`, frozen ones included.

    To look at all objects takes long. Where the type has as many references as the last time, and every
    cache of then is alive, there is no other.
    """
    global _known
    references, (before, weak) = sys.getrefcount(Wrapper), _known
    caches = [one for one in (reference() for reference in weak) if one is not None]
    if before != references or len(caches) != len(weak):
        caches = [one for one in objects_of(Wrapper) if type(one) is Wrapper]
        _known = references, [weakref.ref(one) for one in caches]
    return caches


def name_of(cache: Any) -> str:
    """Returns the name of the cached function, with its module."""
    names = object.__getattribute__(cache, "__dict__")
    parts = [names.get("__module__"), names.get("__qualname__")]
    return ".".join(part for part in parts if type(part) is str) or "a function without a name"


def _entries(cache: Any) -> list[object]:
    # Its dict, and its links or their keys and results, by version; not its attributes.
    attributes = object.__getattribute__(cache, "__dict__")
    return [one for one in referents(cache) if one is not attributes]


def held_bytes(roots: Iterable[object], device: str) -> int:
    """Returns how much of a device's memory some objects lead to, each storage counted once."""
    found = led_to(list(roots), candidate_types(), list(NOT_THROUGH), MOST_OBJECTS)
    return bytes_on(found, device)
