"""SGLang: a resume trims with a receipt, and reserved memory is watched over weight updates (R37–R43).

`Scheduler.continue_generation` returns cached memory to the driver before it lets requests run again,
and logs one line. Here lowtide does that and logs its line; SGLang's own trim is then left out. The
scheduler's process has one thread that runs requests, and this is that thread: nothing races.

SGLang's own hooks are used: they are applied in every process that it starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._idle.gate import Gate
from . import when_imported

if TYPE_CHECKING:
    from . import Adopted

TARGET = "sglang.srt.managers.scheduler.Scheduler.continue_generation"


def adopt(adopted: Adopted) -> None:
    """Registers the hook with SGLang's registry, which applies it when SGLang starts."""

    def register(registry: ModuleType) -> None:
        registry.HookRegistry.register(TARGET, resume, registry.HookType.AROUND)
        adopted.replaced.append(TARGET)
        plugins = sys.modules.get("sglang.srt.plugins")
        is_plugin = registry._current_plugin_source.get() is not None
        # Where SGLang has started and applied the hooks that it had, this one is applied now.
        if not is_plugin and getattr(plugins, "_plugins_loaded", False):
            registry.HookRegistry.apply_hooks()

    when_imported("sglang.srt.plugins.hook_registry", register)


def register() -> None:
    """The entry point `sglang.srt.plugins`: adopts SGLang if LOWTIDE_ADOPT names it, else nothing."""
    from . import adopt as adopt_project, is_wanted

    if is_wanted("sglang"):
        adopt_project("sglang")


@cache
def gate() -> Gate:
    """Returns the gate whose resumes are watched. `gate().trend()` says how reserved memory changes.

    It is made at the first resume: before that there may be no device.
    """
    return Gate()


def resume(original: Callable[..., object], scheduler: object, request: Any) -> object:
    """Trims, then continues without SGLang's own trim. The hook around `continue_generation`."""
    from . import is_adopted

    if not request.torch_empty_cache or not is_adopted("sglang"):
        return original(scheduler, request)
    with gate().paused("in_place", collect=False):
        pass
    # The request is the caller's: it is as before when this returns.
    request.torch_empty_cache = False
    try:
        return original(scheduler, request)
    finally:
        request.torch_empty_cache = True
