"""AutoRAG: each module's turn is a stage, and its clean-up returns memory to the driver (R1–R10).

AutoRAG loads one model after another. A module's turn is `BaseModule.run_evaluator`: it makes the
module, runs it and drops it. Here the module belongs to a stage for that time. At the stage's end its
attributes that lead to device memory are set to None. They are not deleted: the `__del__` of AutoRAG's
modules deletes them once more.
"""

from __future__ import annotations

import atexit
import functools
import sys
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import compat
from .._release.releasers import releaser_for
from .._runtime.log import logger
from .._stages.stage import Stages
from . import when_imported

if TYPE_CHECKING:
    from .._stages.stage import Stage
    from . import Adopted


def adopt(adopted: Adopted) -> None:
    """Replaces `empty_cuda_cache`, `BaseModule.run_evaluator` and `Evaluator.start_trial`."""
    when_imported("autorag.utils.util", lambda util: _replace_cache(adopted, util))
    when_imported("autorag.schema.base", lambda base: _replace_turn(adopted, base))
    when_imported("autorag.evaluator", lambda evaluator: _replace_trial(adopted, evaluator))


def _replace_cache(adopted: Adopted, util: ModuleType) -> None:
    original = util.empty_cuda_cache
    adopted.replace(util, "empty_cuda_cache", lambda _: empty_cuda_cache)
    # Modules that were imported before have it under its name; later ones get ours.
    for name, module in list(sys.modules.items()):
        if name.startswith("autorag.") and vars(module).get("empty_cuda_cache") is original:
            adopted.replace(module, "empty_cuda_cache", lambda _: empty_cuda_cache)


_ending: list[type] = []
"""The modules whose turns end at the moment: their stages collect and trim.

Of the whole process: a release drops a module in a thread of its own.
"""


def empty_cuda_cache() -> None:
    """Returns cached memory to the driver, except at the end of a turn, where the stage does it.

    A module's `__del__` calls this in the middle of the stage's own release.
    """
    if not _ending:
        compat.empty_cuda_cache()


def _replace_turn(adopted: Adopted, base: ModuleType) -> None:
    def make(original: Any) -> object:
        body = original.__func__

        @functools.wraps(body)
        def run_evaluator(cls: type, *arguments: Any, **keywords: Any) -> object:
            with ExitStack() as ends, _stages(adopted).stage(cls.__name__, owns=False) as stage:
                try:
                    return body(_Making(cls, stage), *arguments, **keywords)
                finally:
                    # Until the stage has ended.
                    _ending.append(cls)
                    ends.callback(_ending.remove, cls)

        return classmethod(run_evaluator)

    adopted.replace(base.BaseModule, "run_evaluator", make)


class _Making:
    """Stands for a module's class in `run_evaluator`: what it makes belongs to the stage."""

    def __init__(self, cls: type, stage: Stage) -> None:
        self._cls = cls
        self._stage = stage

    def __call__(self, *arguments: Any, **keywords: Any) -> object:
        module = self._cls(*arguments, **keywords)
        engine = getattr(module, "vllm_model", None)
        if engine is None:
            self._stage.own(module)
        else:
            # The end of a vLLM module reaches through this attribute, so that it must stay. The engine
            # has communicators.
            self._stage.own(engine)
            self._stage._process_groups = True
        return module

    def __getattr__(self, name: str) -> object:
        return getattr(self._cls, name)


def _replace_trial(adopted: Adopted, evaluator: ModuleType) -> None:
    def make(original: Any) -> object:
        @functools.wraps(original)
        def start_trial(*arguments: Any, **keywords: Any) -> object:
            adopted.stages = None
            try:
                return original(*arguments, **keywords)
            finally:
                _log_report(adopted)

        return start_trial

    adopted.replace(evaluator.Evaluator, "start_trial", make)


def _stages(adopted: Adopted) -> Stages:
    # Made at the first turn: before that there may be no device. A forked child has its own.
    stages = adopted.stages
    if stages is None or stages._releaser is not releaser_for(stages._device):
        stages = adopted.stages = Stages()
        atexit.unregister(_log_report)
        atexit.register(_log_report, adopted)
    return stages


def _log_report(adopted: Adopted) -> None:
    """Logs what the modules of a run have used: at the end of a trial, or of the program."""
    atexit.unregister(_log_report)
    if adopted.stages is not None:
        logger().info("%s", adopted.stages.report())
