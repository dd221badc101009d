"""`functools.lru_cache`s that hold tensors of the device: nothing else in Python lets one see into
them. Those that hold none are left alone, however large they are.

What a cache holds is found by following references from its entries, never through modules, classes
and functions, from which everything is reached. No code of the user's runs until a cache is cleared.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .hook import Hook, Touched

if TYPE_CHECKING:
    from .._torch import Device

Wrapper: Any = type(functools.lru_cache(lambda: None))
# Looking stops here in each cache; it was found to hold a tensor long before, or it is no cache of
# tensors.
MOST_OBJECTS = 50_000
# From these everything is reached, or nothing.
NOT_THROUGH = (
    types.ModuleType,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    Wrapper,
)


class Found(NamedTuple):
    cache: Any
    name: str
    bytes: int


class LruCaches(Hook):
    place = "caches"
    name = "functools.lru_cache"

    def __init__(self, device: Device) -> None:
        self._device = device.name

    def expect(self) -> int | None:
        return sum(found.bytes for found in caches_with_tensors(self._device))

    def run(self, round: int) -> Touched:
        touched: Touched = []
        for found in caches_with_tensors(self._device):
            Wrapper.cache_clear(found.cache)
            touched.append((f"{found.name} (functools.lru_cache)", found.bytes))
        return touched


def caches_with_tensors(device: str) -> list[Found]:
    """The caches that hold memory of a device, with how much."""
    found = []
    for cache in lru_caches():
        held = held_bytes(_entries(cache), device)
        if held > 0:
            found.append(Found(cache, name_of(cache), held))
    return found


def lru_caches() -> list[Any]:
    """Every lru_cache. The native walk sees frozen ones too; the collector's list does not."""
    try:
        from .. import _native
    except ImportError:
        walk = None
    else:
        walk = getattr(_native, "lru_caches", None)
    if walk is not None:
        return list(walk())
    return [one for one in gc.get_objects() if type(one) is Wrapper]


def name_of(cache: Any) -> str:
    names = object.__getattribute__(cache, "__dict__")
    parts = [names.get("__module__"), names.get("__qualname__")]
    return ".".join(part for part in parts if type(part) is str) or "a function without a name"


def _entries(cache: Any) -> list[object]:
    # Its links (or their keys and results, by version) and its dict; not its attributes.
    attributes = object.__getattribute__(cache, "__dict__")
    return [one for one in gc.get_referents(cache) if one is not attributes]


def held_bytes(roots: Iterable[object], device: str) -> int:
    """How much of a device's memory is reached from some objects; storages are counted once."""
    from .._probe import candidate_types, probe

    wanted = tuple(candidate_types())
    seen: set[int] = set()
    candidates: list[object] = []
    todo = list(roots)
    while todo and len(seen) < MOST_OBJECTS:
        here, todo = todo, []
        through = []
        for one in here:
            kind = type(one)
            if id(one) in seen or issubclass(kind, NOT_THROUGH):
                continue
            seen.add(id(one))
            through.append(one)
            if issubclass(kind, wanted):
                candidates.append(one)
        todo = gc.get_referents(*through)
    found = {one[0]: one[1] for one in probe(candidates) if one is not None and one[2] == device}
    return sum(found.values())
