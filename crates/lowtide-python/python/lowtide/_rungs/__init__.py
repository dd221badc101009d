"""The rungs of Python and torch, one idea per file, and the list of them in the order of a release.

Communicators go before the workspaces that they use, registered caches before the collector that
frees what they held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hook import Hook, PartlyDone, Setting, Touched

if TYPE_CHECKING:
    from .._torch import Device

__all__ = ["Hook", "PartlyDone", "Setting", "Touched", "hooks"]


def hooks(device: Device, *, unfreeze: bool = False, process_groups: bool = False) -> list[Hook]:
    """Every hook for a device. Those that do not apply say why when asked (`missing`)."""
    from .caches import RegisteredCaches
    from .collector import Collector
    from .compile_caches import CompileCaches
    from .libraries import FftPlans, IpcLeftovers, Workspaces
    from .lru_caches import LruCaches
    from .process_groups import ProcessGroups
    from .sessions import Sessions
    from .to_host import ModelsToHost
    from .tracebacks import StoredTracebacks

    return [
        ModelsToHost(device),
        Sessions(),
        ProcessGroups(asked=process_groups),
        Workspaces(device),
        FftPlans(device),
        IpcLeftovers(device),
        RegisteredCaches(),
        StoredTracebacks(),
        LruCaches(device),
        CompileCaches(),
        Collector(unfreeze=unfreeze),
        Workspaces(device, place="fallback"),
    ]
