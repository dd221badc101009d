"""Which device a call is about. The same name always yields the same object."""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple

from .._runtime import has_exit_begun
from .._runtime.log import tell
from .._runtime.torch import absent, torch
from .accelerator import AcceleratorDevice, current_index, current_kind, device_count
from .device import Device

ENVIRONMENT = "LOWTIDE_DEVICE"

_INSTEAD = 'device="cpu", or LOWTIDE_DEVICE=cpu, measures host memory instead'
_devices: dict[str, Device] = {}


class _Wanted(NamedTuple):
    """A device as the caller named it; `None` where the caller left it open."""

    kind: str | None
    number: int | None


def device_of(device: object = None) -> Device | None:
    """Returns the device that is meant, or `None` if there is no such device.

    At the end of the interpreter there is none. A device is given by name ("cuda:0", "cpu" or "host"),
    by index or as a `torch.device`. `None` means the environment variable LOWTIDE_DEVICE, else torch's
    current accelerator. A kind of device that torch does not have here is no device (R2, R3). Raises
    ValueError for an index that torch does not have and for a name that torch does not know.
    """
    if isinstance(device, Device):
        return device
    if has_exit_begun():
        return None
    wanted = _wanted(device if device is not None else os.environ.get(ENVIRONMENT) or None)
    if wanted.kind == "cpu":
        return _one("cpu", "cpu", 0)
    module = torch()
    if module is None:
        return None
    if wanted.kind is not None and wanted.kind not in ("cuda", "xpu", "mps"):
        try:
            module.device(wanted.kind)
        except RuntimeError:
            known = "is not a device that torch knows: say 'cuda:0', 'cuda' or 'cpu'"
            raise ValueError(f"{wanted.kind!r} {known}") from None
    kind = current_kind(module)
    if kind is None or wanted.kind not in (None, kind):
        return None
    count = device_count(module, kind)
    if count == 0:
        return None
    index = wanted.number
    if index is None:
        index = current_index(module, kind)
    if not 0 <= index < count:
        few = f"torch has {count} devices of this kind, numbered from 0"
        raise ValueError(f"{kind}:{index} does not exist: {few}")
    return _one(f"{kind}:{index}", kind, index)


def why_none() -> str:
    """Returns why there is no device at the moment, and what to do, for a receipt."""
    module = torch()
    if module is None:
        why = absent("torch") or "torch is not imported completely"
        return f"{why}, and torch knows the devices: {_INSTEAD}"
    wanted = os.environ.get(ENVIRONMENT)
    asked, instead = f"{ENVIRONMENT} is {wanted}, and " if wanted else "", _INSTEAD
    if wanted and _wanted(wanted).kind == "cpu":
        asked, instead = "", f"without device=, it is {ENVIRONMENT}={wanted}: host memory"
    return f"{asked}torch {module.__version__} has no such device here: {instead}"


@cache
def tell_of_none(caller: str, instead: str = "a lowtide.Worker ends with its memory") -> None:
    """Says once that nothing can be freed, why, and what works."""
    tell(f"{caller}: nothing can be freed here: {why_none()}; {instead}")


def _wanted(device: object) -> _Wanted:
    if device is None:
        return _Wanted(None, None)
    if isinstance(device, int) and not isinstance(device, bool):
        return _Wanted(None, device)
    if isinstance(device, str):
        kind, colon, index = device.strip().lower().partition(":")
        if colon and not index.isdigit():
            raise ValueError(f"{device!r} is not a device: say 'cuda:0', 'cuda' or 'cpu'")
        return _Wanted("cpu" if kind == "host" else kind, int(index) if colon else None)
    named, number = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(named, str) and (number is None or isinstance(number, int)):
        return _Wanted(named, number)
    raise TypeError(f"a device is a name, an index or a torch.device, not {type(device).__name__}")


def _one(name: str, kind: str, index: int) -> Device:
    known = _devices.get(name)
    if known is not None:
        return known
    made: Device
    if kind == "cpu":
        from .cpu import CpuDevice

        made = CpuDevice()
    elif kind == "cuda":
        from .cuda import CudaDevice

        made = CudaDevice(name, index)
    else:
        made = AcceleratorDevice(name, index, kind)
    return _devices.setdefault(name, made)
