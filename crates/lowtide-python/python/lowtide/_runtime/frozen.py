"""How many objects `gc.freeze()` has hidden from the collector.

Python 3.12 moves immortal objects to the frozen ones at every collection. There the collector
reports hundreds of frozen objects in a program that has never frozen anything.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from .._native import frozen_mortals

IMMORTAL: Final[object] = int.__mro__
"""A part of a static type: an immortal object that Python 3.12 keeps among the frozen ones."""
_MIXES_IMMORTALS: Final = sys.version_info[:2] == (3, 12)


def frozen_count() -> int:
    """Returns how many objects are frozen, without immortal ones."""
    count = gc.get_freeze_count()
    if not count or not _MIXES_IMMORTALS:
        return count
    return frozen_mortals(count, IMMORTAL)
