"""What may be cleared because it is made again: registered caches, compiled code, stored tracebacks, and
`functools.lru_cache`s that hold tensors of the device.

What a cache holds is found by following references from its entries, but not through modules, classes and
functions: from those, everything can be reached. No code of the program runs until a cache is cleared.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._devices.device import Device
from .._native import HookPoint, Touch, led_to, referents
from .._runtime.frames import clear_frames
from .._runtime.heap import alive, objects_of, weakly
from .._runtime.torch import Torch, absent, torch
from .._why.memory.probe import bytes_on, candidate_types
from .._why.references.functions import LruCache as Wrapper
from . import registry
from .hook import Hook, each

NAMES = ("last_exc", "last_value", "last_traceback", "last_type")


class RegisteredCaches(Hook):
    """Calls the clear function of every cache that the program has registered with `register_cache`."""

    point = HookPoint.CACHES
    name = "registered caches"

    def missing(self) -> str | None:
        return None if registry.caches else "none; lowtide.register_cache adds one"

    def expect(self) -> int | None:
        known = list(registry.caches.values())
        sizes = [cache.size() for cache in known if cache.size is not None and cache.clear()]
        return sum(sizes) if sizes else None

    def run(self, round: int) -> list[Touch]:
        return each(list(registry.caches), lambda name: f"cache {name}", self._clear)

    def _clear(self, name: str) -> Touch | None:
        cache = registry.caches[name]
        clear = cache.clear()
        if clear is None:
            # The object whose method this was is gone, and its cache with it.
            registry.caches.pop(name, None)
            return None
        held = cache.size() if cache.size is not None else None
        clear()
        return Touch(f"cache {name}", held)


class CompileCaches(Hook):
    """Resets torch.compile if it has compiled anything: compiled code keeps the tensors of compiled models. Functions
    are compiled again at their next call."""

    point = HookPoint.CACHES
    costly = True
    name = "torch.compile caches"

    def missing(self) -> str | None:
        if torch() is None:
            return absent("torch") or "torch is still being imported"
        return absent("torch._dynamo")

    def run(self, round: int) -> list[Touch]:
        compiled = compiled_functions()
        if compiled == 0:
            return []
        dynamo: Torch = sys.modules["torch._dynamo"]
        dynamo.reset()
        many = f"{compiled} compiled functions" if compiled is not None else "compiled functions"
        return [Touch(f"{many} (torch._dynamo.reset)")]


def compiled_functions() -> int | None:
    """Returns how many functions torch.compile has seen, or `None` if this torch does not tell."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None:
        return 0
    seen = getattr(getattr(frames, "input_codes", None), "seen", None)
    if not isinstance(seen, list):
        return None
    return sum(1 for reference in seen if reference() is not None)


class StoredTracebacks(Hook):
    """Deletes the tracebacks that the interpreter has stored in `sys` after an uncaught error in a prompt, a
    notebook or a test run, and clears their frames. Whoever else holds the exception can still print it."""

    point = HookPoint.CACHES
    costly = True
    name = "stored tracebacks"

    def run(self, round: int) -> list[Touch]:
        stored = {name: vars(sys)[name] for name in NAMES if name in vars(sys)}
        cleared = clear_frames(stored.values())
        touched: list[Touch] = []
        for name, value in stored.items():
            delattr(sys, name)
            if value is not None:
                touched.append(Touch(f"sys.{name}"))
        if cleared:
            touched.append(Touch(f"the local variables of {cleared} frames of stored tracebacks"))
        return touched


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
    """Clears every `lru_cache` that holds tensors of the device; nothing else in Python looks into them."""

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
    caches = alive(weak)
    if before != references or len(caches) != len(weak):
        caches = [one for one in objects_of(Wrapper) if type(one) is Wrapper]
        _known = references, weakly(caches)
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
