"""torch's expandable segments, which a scope of `lowtide.tag` has to do without.

With them torch maps memory itself, and asks no pluggable allocator. They are off while a scope is open, and
on again afterwards if they were.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._runtime.torch import Torch

FLAG = "expandable_segments"
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class ExpandableSegments:
    """Counts those who do without, so that the last one of them puts the setting back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._avoiding = 0
        self._before: str | None = None

    def avoid(self, torch: Torch) -> None:
        """Turns expandable segments off, if they are on."""
        with self._lock:
            if self._avoiding == 0:
                self._before = None
                settings = current(torch)
                if is_on(settings):
                    write(torch, without(settings))
                    self._before = settings
            self._avoiding += 1

    def allow(self, torch: Torch) -> None:
        """Turns them on again as the last one who avoided them, if they were on."""
        with self._lock:
            self._avoiding -= 1
            if self._avoiding == 0 and self._before is not None:
                write(torch, self._before)
                self._before = None


def current(torch: Torch) -> str:
    """Returns the settings of torch's allocator, as it was given them last."""
    try:
        live = torch.cuda.memory._snapshot()["allocator_settings"]
    except (AttributeError, KeyError, RuntimeError, TypeError):
        live = {}
    found = [live.get(name) for name in VARIABLES] + [os.environ.get(name) for name in VARIABLES]
    return next((one for one in found if isinstance(one, str) and one), "")


def is_on(settings: str) -> bool:
    """Returns whether settings turn expandable segments on."""
    return any(key == FLAG and value.lower() in ("true", "1") for key, value in fields(settings))


def without(settings: str) -> str:
    """Returns the settings with expandable segments off. torch forgets what is not in the text, so that
    everything else stays in it."""
    kept = [f"{key}:{value}" if value else key for key, value in fields(settings) if key != FLAG]
    return ",".join([*kept, f"{FLAG}:False"])


def fields(settings: str) -> list[tuple[str, str]]:
    """Splits settings at their commas. A list in brackets has commas of its own and no flag."""
    parts = [part.strip().partition(":") for part in settings.split(",") if part.strip()]
    return [(key.strip(), value.strip()) for key, _, value in parts]


def write(torch: Torch, settings: str) -> None:
    """Gives torch's allocator its settings."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (setter or torch.cuda.memory._set_allocator_settings)(settings)
