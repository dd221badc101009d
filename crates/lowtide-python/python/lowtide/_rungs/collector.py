"""Python's garbage collector, in rounds: freeing some objects often makes others unreachable."""

from __future__ import annotations

import gc

from .._hook import Hook
from .._native import HookPoint, Touch

OLDEST = 2


class Collector(Hook):
    """Runs the garbage collector."""

    point = HookPoint.COLLECT
    name = "Python's collector"
    limit_s = 60.0

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
        found = sum(gc.collect(generation) for generation in range(youngest, OLDEST + 1))
        if found:
            touched.append(Touch(f"{found} unreachable objects"))
        if gc.garbage and round == 0:
            touched.append(Touch(f"{len(gc.garbage)} objects left in gc.garbage; clear that list"))
        return touched
