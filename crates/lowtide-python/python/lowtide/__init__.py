"""lowtide gives accelerator memory back, and proves it.

    receipt = lowtide.release()          # what is cached, back to the driver, with a receipt
    lowtide.shutdown(runner)             # what the runner holds goes; who still holds it is named
    with lowtide.stage("reranker") as stage:
        model = stage.own(load())        # torn down at the end, whatever happens

Importing it needs neither torch nor a GPU. torch is never imported by it.
"""

from __future__ import annotations

import sys as _sys
from typing import TYPE_CHECKING

# Named here, because the loader would only say that a file is missing.
if not getattr(_sys, "_is_gil_enabled", lambda: True)() or "t" in getattr(_sys, "abiflags", ""):
    raise ImportError(
        "lowtide does not work on free-threaded builds of Python yet: it walks the heap under the"
        " interpreter's lock, which they do not have. Use an ordinary build of the same version."
    )

from ._contract import Releasable, after_inference, releases, tasks
from ._gate import Gate, Trend
from ._idle import Idle, idle
from ._native import (
    Busy,
    Holder,
    Reading,
    Receipt,
    RungReceipt,
    WouldNotFit,
    __version__,
)
from ._release import empty_device_cache, release, shutdown
from ._stage import Stage, Stages, stage
from ._testing import assert_released

if TYPE_CHECKING:
    from ._answer import Answer
    from ._plan import Audit, audit
    from ._rungs.registry import register_cache, register_model, register_session
    from ._rungs.to_host import back
    from ._why import why

__all__ = [
    "Answer",
    "Audit",
    "Busy",
    "Gate",
    "Holder",
    "Idle",
    "Reading",
    "Receipt",
    "Releasable",
    "RungReceipt",
    "Stage",
    "Stages",
    "Trend",
    "WouldNotFit",
    "__version__",
    "after_inference",
    "assert_released",
    "audit",
    "back",
    "empty_device_cache",
    "idle",
    "register_cache",
    "register_model",
    "register_session",
    "release",
    "releases",
    "shutdown",
    "stage",
    "tasks",
    "why",
]

_LAZY = {
    "Answer": "_answer",
    "Audit": "_plan",
    "audit": "_plan",
    "why": "_why",
    "back": "_rungs.to_host",
    "register_cache": "_rungs.registry",
    "register_model": "_rungs.registry",
    "register_session": "_rungs.registry",
}


def __getattr__(name: str) -> object:
    # What most programs never ask for is imported when they do.
    if name in _LAZY:
        from importlib import import_module

        found: object = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
