"""Python's collector, in rounds: what dies in one collection often lets more die in the next."""

from __future__ import annotations

import gc

from .._frozen import frozen_count
from .hook import Hook, Touched

OLDEST = 2


class Collector(Hook):
    place = "collect"
    name = "Python's collector"
    limit_s = 60.0

    def __init__(self, *, unfreeze: bool = False) -> None:
        self._unfreeze = unfreeze

    def run(self, round: int) -> Touched:
        touched: Touched = []
        frozen = frozen_count()
        if frozen and self._unfreeze:
            gc.unfreeze()
            touched.append((f"{frozen} frozen objects unfrozen; the set was not restored", None))
        # The oldest generation first; later rounds begin younger, so that what finalizers have just
        # made is aged and gone by the time the oldest is looked at again.
        youngest = max(0, OLDEST - round)
        found = sum(gc.collect(generation) for generation in range(youngest, OLDEST + 1))
        if found:
            touched.append((f"{found} unreachable objects", None))
        if gc.garbage and round == 0:
            touched.append((f"{len(gc.garbage)} objects left in gc.garbage; clear that list", None))
        return touched
