"""lowtide frees GPU memory in running programs and verifies the result with the driver's own
numbers.

    print(lowtide.why())                 # what keeps device memory in use, and what frees it
    receipt = lowtide.release()          # returns cached memory to the driver, with a receipt
    lowtide.shutdown(runner)             # drops what only the runner holds, and names other holders
    with lowtide.stage("reranker"):
        model = load()                   # is torn down at the end, also after an exception

Importing lowtide needs neither torch nor a GPU, and never imports torch.
"""

from __future__ import annotations

import sys as _sys
from typing import TYPE_CHECKING

# Checked here, because the loader would only say that a file is missing.
if not getattr(_sys, "_is_gil_enabled", lambda: True)() or "t" in getattr(_sys, "abiflags", ""):
    raise ImportError(
        "lowtide does not work on free-threaded builds of Python yet: it walks the heap while it holds"
        " the interpreter's lock, which they do not have. Use an ordinary build of the same version."
    )

from ._idle.gate import Gate
from ._idle.idle import Idle, Work, idle
from ._native import (
    AgentError,
    AgentStatus,
    Busy,
    Claim,
    Holder,
    Ledger,
    LedgerKind,
    LedgerLine,
    Reading,
    Receipt,
    Restored,
    RungReceipt,
    StageReport,
    StagesReport,
    TagError,
    TagStatus,
    Touch,
    Trend,
    WouldNotFit,
    __version__,
)
from ._release.release import empty_device_cache, release, restore, shutdown
from ._release.testing import assert_released
from ._runtime import has_exit_begun
from ._stages.contract import Releasable, after_inference, releases, tasks
from ._stages.stage import Stage, Stages, stage

if TYPE_CHECKING:
    from . import asgi, compat
    from ._adopt import Adopted, adopt
    from ._release.plan import Audit, audit
    from ._rungs.registry import register_cache, register_model, register_session
    from ._sleep.sleep import Ahead, ahead, sleep, status, suspend, wake
    from ._sleep.tag import Tag, discard, tag, tags
    from ._why.answer import Answer
    from ._why.mark import Mark, mark
    from ._why.plan import cut
    from ._why.why import why
    from ._worker.worker import Worker, WorkerError, WorkerTraceback

__all__ = [
    "Adopted",
    "AgentError",
    "AgentStatus",
    "Ahead",
    "Answer",
    "Audit",
    "Busy",
    "Claim",
    "Gate",
    "Holder",
    "Idle",
    "Ledger",
    "LedgerKind",
    "LedgerLine",
    "Mark",
    "Reading",
    "Receipt",
    "Releasable",
    "Restored",
    "RungReceipt",
    "Stage",
    "StageReport",
    "Stages",
    "StagesReport",
    "Tag",
    "TagError",
    "TagStatus",
    "Touch",
    "Trend",
    "Work",
    "Worker",
    "WorkerError",
    "WorkerTraceback",
    "WouldNotFit",
    "__version__",
    "adopt",
    "after_inference",
    "ahead",
    "asgi",
    "assert_released",
    "audit",
    "compat",
    "cut",
    "discard",
    "empty_device_cache",
    "idle",
    "mark",
    "register_cache",
    "register_model",
    "register_session",
    "release",
    "releases",
    "restore",
    "shutdown",
    "sleep",
    "stage",
    "status",
    "suspend",
    "tag",
    "tags",
    "tasks",
    "wake",
    "why",
]

_LAZY = {
    name: module
    for module, names in {
        "_adopt": ("Adopted", "adopt"),
        "_notebook": ("load_ipython_extension",),
        "_release.plan": ("Audit", "audit"),
        "_rungs.registry": ("register_cache", "register_model", "register_session"),
        "_sleep.sleep": ("Ahead", "ahead", "sleep", "status", "suspend", "wake"),
        "_sleep.tag": ("Tag", "discard", "tag", "tags"),
        "_why.answer": ("Answer",),
        "_why.mark": ("Mark", "mark"),
        "_why.plan": ("cut",),
        "_why.why": ("why",),
        "_worker.worker": ("Worker", "WorkerError", "WorkerTraceback"),
    }.items()
    for name in names
}
"""Names that most programs never use, by the module that is imported at their first use."""
_MODULES = ("asgi", "compat")


class _Nothing:
    """Stands for what cannot be imported any more at the end of the interpreter: it does nothing."""

    def __call__(self, *_arguments: object, **_keywords: object) -> None: ...

    def __getattr__(self, name: str) -> object:
        return self


def __getattr__(name: str) -> object:
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if has_exit_begun():
        return _Nothing()
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    found: object = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = found
    return found


def _start_by_environment() -> None:
    import os

    if os.environ.get("LOWTIDE_FREE_ON_IDLE", "").strip():
        from ._idle.ambient import start_by_environment

        start_by_environment()
    if os.environ.get("LOWTIDE_ADOPT", "").strip():
        from ._adopt import adopt_by_environment

        adopt_by_environment()


_start_by_environment()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
