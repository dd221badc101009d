"""The releasers of this process, one for each device."""

from __future__ import annotations

import os

from .._devices.choose import device_of, why_none
from .._devices.device import Device
from .._native import Releaser
from .._runtime import has_exit_begun

_releasers: dict[str | None, Releaser] = {}

# A child process has copies of its parent's locks, and none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_releasers.clear)


def releaser_of(device: object = None) -> Releaser:
    """Returns the releaser of a device, given by name, index or object. There is one for each
    device.

    If there is no device, the releaser's receipts have the verdict `no-device`.
    """
    return releaser_for(device_of(device))


def releasers() -> list[Releaser]:
    """Returns every releaser that was used in this process."""
    return list(_releasers.values())


def releaser_for(device: Device | None) -> Releaser:
    """Returns the releaser of a device object."""
    if has_exit_begun():
        return Releaser(None, ())
    name = None if device is None else device.name
    known = _releasers.get(name)
    if known is None:
        known = _releasers.setdefault(name, _new(device))
    return known


def _new(device: Device | None) -> Releaser:
    if device is None:
        return Releaser(None, (), why_none)
    from .._rungs.all import hooks_of

    return Releaser(device, hooks_of(device))
