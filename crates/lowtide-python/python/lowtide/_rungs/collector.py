"""Python's garbage collector, in rounds: freeing some objects often makes others unreachable.

A full collection takes long in a large heap. So after one, the collector is asked again only if
something on the device may have become garbage since: see `finds_nothing`.
"""

from __future__ import annotations

import gc

from .._devices.device import Device
from .._native import HookPoint, Touch
from .hook import Hook
from .lru_caches import held_bytes
from .watched import Watched

OLDEST = 2


class Collector(Hook):
    """Runs the garbage collector. With a device, it notices garbage that holds memory of it."""

    point = HookPoint.COLLECT
    name = "Python's collector"
    limit_s = 60.0

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._watched: Watched | None = None
        self._may_find = True
        self._found = 0

    def finds_nothing(self) -> bool | None:
        """Collects young objects, which is quick, and looks whether something that leads to device
        memory has lost a reference since the last full collection."""
        if self._watched is None or self._device is None:
            return None
        gc.collect(OLDEST - 1)
        if not self._may_find:
            fewer = self._watched.fewer()
            # Kept until the next full collection, which may not come at once.
            self._may_find = bool(fewer) and held_bytes(fewer, self._device.name) > 0
        return not self._may_find

    def run_round(self, round: int, is_full: bool) -> list[Touch]:
        if is_full:
            return self.run(round)
        found = gc.collect(OLDEST - 1)
        return [Touch(f"{found} unreachable young objects")] if found else []

    def run(self, round: int) -> list[Touch]:
        touched: list[Touch] = []
        # The first round collects the oldest generation. Later rounds begin with a younger one, so
        # that objects which finalizers have just created reach the oldest before it is collected
        # again.
        youngest = max(0, OLDEST - round)
        # Where the round before has found nothing, only what has become garbage since may be there. It is young, and a
        # collection of a heap of a million objects takes half a second. Nor can any free what is free already.
        oldest = OLDEST if round == 0 or self._found and self._may_free() else OLDEST - 1
        found = sum(gc.collect(generation) for generation in range(youngest, oldest + 1))
        self._found = found
        if found:
            touched.append(Touch(f"{found} unreachable objects"))
        if gc.garbage and round == 0:
            touched.append(Touch(f"{len(gc.garbage)} objects left in gc.garbage; clear that list"))
        if self._device is not None and round > 0:
            # There is always a second round.
            self._watched = self._watched or Watched()
            self._watched.look()
            self._may_find = False
        return touched

    def _may_free(self) -> bool:
        """Returns whether a collection may free so much of the device that its number shows it."""
        held = None if self._device is None else self._device.held()
        return held is None or self._device is None or held > self._device.noise_bytes
