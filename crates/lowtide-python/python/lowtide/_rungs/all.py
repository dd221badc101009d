"""Every hook of Python and torch, in the order of a release.

Communicators go before the workspaces that they use, and registered caches before the collector,
which frees what they held.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._devices.device import Device
from .._native import HookPoint
from .caches import CompileCaches, LruCaches, RegisteredCaches, StoredTracebacks
from .collector import Collector
from .hook import Hook
from .libraries import FftPlans, IpcLeftovers, Workspaces, group_hooks
from .processes import ThisProcess, Workers
from .registered import ModelsToHost, Sessions


def hooks_of(device: Device, *, process_groups: bool = False) -> Sequence[Hook]:
    """Returns every hook for a device: its own where it has some, else the usual ones.

    A hook that does not apply says why when it is asked (`Hook.missing`). `process_groups` destroys
    communicators too, which a program that goes on training does not want.
    """
    own = device.hooks()
    if own is not None:
        return own
    return [
        ModelsToHost(device),
        Sessions(),
        *group_hooks(asked=process_groups),
        Workspaces(device),
        FftPlans(device),
        IpcLeftovers(device),
        RegisteredCaches(),
        StoredTracebacks(),
        LruCaches(device),
        CompileCaches(),
        Collector(device),
        Workers(device),
        Workspaces(device, point=HookPoint.FALLBACK),
        Workers(device, point=HookPoint.EXIT),
        *([ThisProcess(device)] if device.kind == "cuda" else []),
    ]
