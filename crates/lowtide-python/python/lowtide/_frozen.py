"""How many objects `gc.freeze()` has taken from the collector.

Python 3.12 moves immortal objects to where frozen ones are, at every collection: there the collector
says that hundreds are frozen in a program that has never frozen anything.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from . import _native

IMMORTAL: Final[object] = int.__mro__
"""What a static type is made of. It never ends, and Python 3.12 has it among the frozen."""
_MIXES_IMMORTALS: Final = sys.version_info[:2] == (3, 12)


def frozen_count() -> int:
    """How many objects are frozen and could be collected otherwise."""
    count = gc.get_freeze_count()
    if not count or not _MIXES_IMMORTALS:
        return count
    return _native.frozen_mortals(count, IMMORTAL)
