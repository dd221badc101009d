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

# `X as X`: these names are public.
from ._idle.gate import Gate as Gate
from ._idle.idle import Idle as Idle, Work as Work, idle as idle
from ._native import (
    AgentError as AgentError,
    AgentStatus as AgentStatus,
    Busy as Busy,
    Claim as Claim,
    Holder as Holder,
    Ledger as Ledger,
    LedgerKind as LedgerKind,
    LedgerLine as LedgerLine,
    Reading as Reading,
    Receipt as Receipt,
    Restored as Restored,
    RungReceipt as RungReceipt,
    StageReport as StageReport,
    StagesReport as StagesReport,
    TagError as TagError,
    TagStatus as TagStatus,
    Touch as Touch,
    Trend as Trend,
    WouldNotFit as WouldNotFit,
    __version__ as __version__,
)
from ._release.release import (
    empty_device_cache as empty_device_cache,
    release as release,
    restore as restore,
    shutdown as shutdown,
)
from ._release.testing import assert_released as assert_released
from ._runtime import has_exit_begun
from ._stages.contract import (
    Releasable as Releasable,
    after_inference as after_inference,
    releases as releases,
    tasks as tasks,
)
from ._stages.stage import Stage as Stage, Stages as Stages, stage as stage

if TYPE_CHECKING:
    from . import asgi as asgi, compat as compat
    from ._adopt import Adopted as Adopted, adopt as adopt
    from ._release.plan import Audit as Audit, audit as audit
    from ._rungs.registry import (
        register_cache as register_cache,
        register_model as register_model,
        register_session as register_session,
    )
    from ._sleep.sleep import (
        Ahead as Ahead,
        ahead as ahead,
        sleep as sleep,
        status as status,
        suspend as suspend,
        wake as wake,
    )
    from ._sleep.tag import Tag as Tag, discard as discard, tag as tag, tags as tags
    from ._why.answer import Answer as Answer
    from ._why.mark import Mark as Mark, mark as mark
    from ._why.plan import cut as cut
    from ._why.why import why as why
    from ._worker.worker import (
        Worker as Worker,
        WorkerError as WorkerError,
        WorkerTraceback as WorkerTraceback,
    )

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
    return sorted({*globals(), *_LAZY, *_MODULES})
