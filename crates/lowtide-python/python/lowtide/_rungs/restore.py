"""`restore`: brings back what releases took off the device."""

from __future__ import annotations

from .._native import Touch
from .._release.releasers import releaser_of, releasers
from .._runtime.exit import has_exit_begun
from .._runtime.log import log_restored


def restore(device: object = None) -> list[Touch]:
    """Moves registered models back to their device and opens registered sessions again.

    `idle.work()` and `Gate.enter()` do this by themselves. Call it after `release(to=…)` in a program
    that uses neither. Without a device it is about every device that was used. Returns what came
    back, with bytes. Raises RuntimeError if something did not come back; a second call tries again.
    """
    if has_exit_begun():
        return []
    known = releasers() if device is None else [releaser_of(device)]
    touched: list[Touch] = []
    for releaser in known:
        restored = releaser.restore()
        if restored is not None:
            log_restored(restored)
            touched += restored.touched
    return touched
