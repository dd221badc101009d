"""Caches that the program has registered with `lowtide.register_cache`."""

from __future__ import annotations

from .._native import HookPoint, Touch
from . import registry
from .hook import Hook, done


class RegisteredCaches(Hook):
    """Calls the clear function of every registered cache."""

    point = HookPoint.CACHES
    name = "registered caches"

    def missing(self) -> str | None:
        return None if registry.caches else "none; lowtide.register_cache adds one"

    def expect(self) -> int | None:
        known = list(registry.caches.values())
        sizes = [cache.size() for cache in known if cache.size is not None and cache.clear()]
        return sum(sizes) if sizes else None

    def run(self, round: int) -> list[Touch]:
        touched: list[Touch] = []
        failures: list[str] = []
        for name, cache in list(registry.caches.items()):
            clear = cache.clear()
            if clear is None:
                # The object whose method this was is gone, and its cache with it.
                registry.caches.pop(name, None)
                continue
            try:
                held = cache.size() if cache.size is not None else None
                clear()
            except Exception as failure:  # noqa: BLE001  One failure does not stop the others.
                failures.append(f"cache {name}: {type(failure).__name__}: {failure}")
            else:
                touched.append(Touch(f"cache {name}", held))
        return done(touched, failures)
