"""What torch is here, and which device a call is about.

lowtide never imports torch: a program without it must not pay for it, and a program that is still
importing it must not see it half-made. Everything that knows torch asks `torch()` first. A device is
one object per name that the native releaser asks and drives; nothing in it creates a context or
initialises a device where the program has not.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._rungs import Hook, Setting

ENVIRONMENT = "LOWTIDE_DEVICE"
UNREADABLE = (RuntimeError, TypeError, ValueError, AttributeError)
"""What torch raises where a tensor, a storage or a node has not what it is asked for."""


def torch() -> Any | None:
    """torch, where the program has imported it completely; else `None`."""
    module = sys.modules.get("torch")
    if module is None:
        return None
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        return None
    # A namespace folder that happens to be called torch has no Tensor.
    return module if "Tensor" in vars(module) else None


def absent(name: str) -> str | None:
    """Why a library is of no use here, in words: not installed, or not imported. `None`: it is."""
    if name in sys.modules:
        return None
    from importlib.util import find_spec

    try:
        found = find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        found = False
    return f"{name} is not imported" if found else f"{name} is not installed"


class Device:
    """What a release works on. Every method may raise: errors become text in the receipt."""

    kind: str = ""
    noise_bytes: int = 0
    """So much, and less, the numbers change by themselves, and proves nothing."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index

    def __repr__(self) -> str:
        return f"Device({self.name})"

    def usage(self) -> tuple[int, int]:
        """Total and free bytes, by the driver."""
        raise NotImplementedError

    def own(self) -> int | None:
        """This process's part in bytes, where the driver tells."""
        return None

    def others(self) -> list[tuple[str, int]]:
        """What other processes hold, where the driver tells: a name and bytes each."""
        return []

    def synchronize(self) -> None:
        """Waits for all work on the device; does nothing where nothing was ever started there."""

    def counts(self) -> tuple[int, int]:
        """Allocated and reserved bytes of the framework's allocator."""
        raise NotImplementedError

    def lines(self) -> list[tuple[str, str, int]]:
        """Where `reserved` is, for the ledger: kind, name, bytes. The lines add up to it."""
        allocated, reserved = self.counts()
        return ledger_lines(f"{self.name} allocator", allocated, reserved - allocated)

    def why_not_trim(self) -> str | None:
        """Why trimming would do nothing or harm now, where that is so."""
        return None

    def trim(self) -> int:
        """Cached memory back to the driver; how many bytes the allocator says that was."""
        raise NotImplementedError

    def hooks(self, *, unfreeze: bool = False, process_groups: bool = False) -> list[Hook]:
        """The rungs of Python and torch for this device, in the order in which they are run.

        `unfreeze` lets the collector thaw what `gc.freeze()` froze. `process_groups` lets the
        communicators go, which nobody wants who goes on training.
        """
        from ._rungs import hooks

        return hooks(self, unfreeze=unfreeze, process_groups=process_groups)

    def settings(self) -> list[Setting]:
        """Settings that are lowered for a moment and always come back."""
        return []


def ledger_lines(name: str, live: int, cached: int) -> list[tuple[str, str, int]]:
    """The two lines that every allocator has, without those that are empty."""
    lines = [("live", name, live), ("cached", name, cached)]
    return [line for line in lines if line[2] > 0]


_devices: dict[str, Device] = {}


def device_of(device: object = None) -> Device | None:
    """The device that is meant, or `None`: there is no device.

    `None` means the environment variable LOWTIDE_DEVICE, else torch's current accelerator. A name
    ("cuda:0", "cpu"), an index or a `torch.device` says which. The same device is always the same
    object. A device that torch does not have is no device (R2, R3); an index beyond those that torch
    has, or a word that is no device at all, is an error of the caller.
    """
    if isinstance(device, Device):
        return device
    kind, index = _meant(device if device is not None else os.environ.get(ENVIRONMENT) or None)
    if kind == "cpu":
        return _one("cpu", "cpu", 0)
    module = torch()
    if module is None:
        return None
    if kind is not None and kind not in ("cuda", "xpu", "mps"):
        _refuse_unknown(module, kind)
    accelerator = module.accelerator.current_accelerator()
    if accelerator is None or kind not in (None, accelerator.type):
        return None
    count = module.accelerator.device_count()
    if count == 0:
        return None
    if index is None:
        index = _current_index(module, accelerator.type)
    if not 0 <= index < count:
        few = f"torch sees {count} of them, numbered from 0"
        raise ValueError(f"{accelerator.type}:{index} is not there: {few}")
    return _one(f"{accelerator.type}:{index}", accelerator.type, index)


def _meant(device: object) -> tuple[str | None, int | None]:
    if device is None:
        return None, None
    if isinstance(device, int) and not isinstance(device, bool):
        return None, device
    if isinstance(device, str):
        kind, colon, index = device.strip().lower().partition(":")
        if colon and not index.isdigit():
            raise ValueError(f"{device!r} is no device: say 'cuda:0', 'cuda' or 'cpu'")
        return kind, int(index) if colon else None
    named, number = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(named, str) and (number is None or isinstance(number, int)):
        return named, number
    raise TypeError(f"a device is a name, an index or a torch.device, not {type(device).__name__}")


def _refuse_unknown(module: Any, kind: str) -> None:
    try:
        module.device(kind)
    except RuntimeError:
        message = f"{kind!r} is no device that torch knows: say 'cuda:0', 'cuda' or 'cpu'"
        raise ValueError(message) from None


def _current_index(module: Any, kind: str) -> int:
    # Asking for the current index initialises the device. Before that it is 0, and stays so until
    # the program chooses, which initialises.
    backend = getattr(module, kind, None)
    initialised = getattr(backend, "is_initialized", None)
    if initialised is None or not initialised():
        return 0
    return int(module.accelerator.current_device_index())


def _one(name: str, kind: str, index: int) -> Device:
    known = _devices.get(name)
    if known is not None:
        return known
    made: Device
    if kind == "cpu":
        from ._cpu import CpuDevice

        made = CpuDevice()
    elif kind == "cuda":
        from ._cuda import CudaDevice

        made = CudaDevice(name, index)
    else:
        from ._accelerator import AcceleratorDevice

        made = AcceleratorDevice(name, index, kind)
    return _devices.setdefault(name, made)
