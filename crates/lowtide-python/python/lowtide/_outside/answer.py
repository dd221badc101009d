"""Answers the questions of `lowtide why PID`, in the program that is asked.

Of the program nothing is kept. The cuts of the last answer stay, as texts and numbers, so that one of them can be
applied later; the next answer replaces them.
"""

from __future__ import annotations

import gc
import math
import os
import re
import sys
import time
from typing import Any, NamedTuple

from .._devices.choose import ENVIRONMENT, device_of
from .._devices.cuda import CudaDevice, capturing
from .._devices.device import Device
from .._native import AllocatorCounts, ProcessUsage, __version__, agent_is_suspended
from .._runtime.guest import IS_GUEST
from .._runtime.torch import Torch, torch
from .._why.alone import EXAMINING
from .._why.plan import Plan, cuts_text
from .._why.why import Asking

OBJECTS_PER_S = 1_500_000
"""How many blocks of the interpreter's memory are walked over in a second, on a slow machine."""
LONG_S = 1.0
"""A question that is expected to take longer has to be meant."""
CUT = re.compile(r"\blowtide\.cut\('?(all|\d+)'?\)")


class _Seen(Device):
    """A device as it may be asked about from outside: NVML is not loaded for that, and torch's allocator not asked
    while a call of the program waits in it."""

    def __init__(self, device: Device, waits: bool) -> None:
        super().__init__(device.name, device.index)
        self._device, self._waits = device, waits

    def counts(self) -> AllocatorCounts:
        return AllocatorCounts(0, 0) if self._waits else self._device.counts()

    def others(self) -> list[ProcessUsage]:
        return []


class _Outside(Asking):
    """A question from outside."""

    waits = False

    def _seen(self) -> Device | None:
        device = super()._seen()
        return None if device is None else _Seen(device, self.waits)


class _Last(NamedTuple):
    """The last answer: what applies its cuts."""

    asking: _Outside
    plan: Plan


_last: list[_Last] = []
_process = [os.getpid()]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request, as plain data."""
    if _process[0] != os.getpid():
        # A forked child: an examination of its parent's thread has not gone on here.
        _process[0] = os.getpid()
        _last.clear()
        if IS_GUEST:
            EXAMINING.after_fork_in_child()
    if __version__ != request["version"]:
        return _refused(f"the package there is of version {__version__}")
    if agent_is_suspended():
        return _refused("it is suspended; `lowtide resume` brings it back")
    until = time.monotonic() + request["limit_s"]
    try:
        return _why(request, until) if request["of"] is None else _cut(request, until)
    except (LookupError, TypeError, ValueError, TimeoutError) as error:
        return _refused(str(error))


def _refused(reason: str) -> dict[str, Any]:
    return {"answer": "refused", "reason": reason}


def _confirm(question: str) -> dict[str, Any]:
    return {"answer": "confirm", "question": question}


def _why(request: dict[str, Any], until: float) -> dict[str, Any]:
    began = time.perf_counter()
    device = _device(request["device"], request["waits"])
    # The current device of this thread: to ask where there is no context would create one.
    current = None if device == "cpu" else device_of()
    if isinstance(current, CudaDevice) and current.has_context() and capturing(torch()):
        return _refused("it is capturing a CUDA graph; ask again when that is done")
    # All of them: what the collector lists would have to be listed for that.
    objects = sys.getallocatedblocks() or len(gc.get_objects())
    expected_s = objects / OBJECTS_PER_S
    if expected_s > LONG_S and not request["sure"]:
        return _confirm(
            f"process {request['pid']} ({request['command']}) has about {objects} objects: it would stand still for"
            f" about {math.ceil(expected_s)} s"
        )
    asking = _Outside(None, device)
    asking.until, asking.waits = until, request["waits"]
    found = asking.answer(False, None, began)
    name = found.plan.name = os.urandom(3).hex() if found.plan.cuts else ""
    _last[:] = [_Last(asking, found.plan)]
    return {
        "answer": "why",
        "installation": "private" if IS_GUEST else "own",
        "name": name or None,
        "longest_stop_s": found.waited_s,
        "why": found.to_dict(),
        # By a function: `re` would keep what it makes of every text, and drop what the program has there.
        "text": CUT.sub(
            lambda cut: f"lowtide why {request['pid']} --cut {cut[1]} --of {name}", str(found)
        ),
    }


def _device(wanted: str | None, waits: bool) -> str:
    """Returns the name of the device that is meant: without one, that of which torch's allocator has most.

    A device that the program has not used is not initialised for a question about it.
    """
    module: Torch = torch()
    if wanted is not None or os.environ.get(ENVIRONMENT):
        found = device_of(wanted)
        return found.name if found is not None else str(wanted)
    kinds = [getattr(module, kind, None) for kind in ("cuda", "xpu")]
    if not any(kind is not None and kind.is_initialized() for kind in kinds):
        return "cpu"
    found = device_of()
    if found is None:
        return "cpu"
    if waits or not isinstance(found, CudaDevice):
        return found.name
    names = [f"cuda:{index}" for index in range(module.cuda.device_count())]
    sizes = {name: _reserved(name) for name in names}
    return max(names, key=lambda name: sizes[name], default=found.name)


def _reserved(name: str) -> int:
    device = device_of(name)
    return 0 if device is None else device.counts().reserved_bytes


def _cut(request: dict[str, Any], until: float) -> dict[str, Any]:
    """Says what a cut of the last answer is; or applies it, if nothing that it cuts has changed."""
    name, wanted = request["of"], request["cut"]
    last = next((one for one in _last if one.plan.name == name), None)
    if last is None:
        return _refused(
            f"nothing was done: no answer of it is called {name}, or it was asked again since. Ask again"
        )
    cuts = {one.number: one for one in last.plan.cuts}
    named = tuple(one for one in cuts if one and str(one) == wanted)
    numbers = last.plan.all if wanted == "all" else named
    if not numbers:
        return _refused(f"nothing was done: {name} has no cut {wanted}")
    chosen = [cuts[number] for number in numbers]
    text = cuts_text(numbers)
    if not request["sure"]:
        lines = "; ".join(one.line().strip().partition("  ")[2] for one in chosen)
        where = f"process {request['pid']} ({request['command']})"
        return _confirm(f"{text} of {name} in {where}: {lines}")
    last.asking.until = until
    freed = last.asking.apply(chosen)
    return {"answer": "cut", "cuts": text, "freed_bytes": freed}
