"""Caches that the program has registered (`lowtide.register_cache`)."""

from __future__ import annotations

from . import registry
from .hook import Hook, Touched, done


class RegisteredCaches(Hook):
    place = "caches"
    name = "registered caches"

    def missing(self) -> str | None:
        return None if registry.caches else "none; lowtide.register_cache adds one"

    def expect(self) -> int | None:
        sizes = [size() for clear, size in list(registry.caches.values()) if size and clear()]
        return sum(sizes) if sizes else None

    def run(self, round: int) -> Touched:
        touched: Touched = []
        failures: list[str] = []
        for name, (give, size) in list(registry.caches.items()):
            clear = give()
            if clear is None:
                registry.caches.pop(name, None)  # Whose method it was is gone, and its cache too.
                continue
            try:
                held = size() if size is not None else None
                clear()
            except Exception as failure:  # noqa: BLE001  Its failure stops nobody else.
                failures.append(f"cache {name}: {type(failure).__name__}: {failure}")
            else:
                touched.append((f"cache {name}", held))
        return done(touched, failures)
