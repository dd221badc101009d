"""lmms-eval: memory goes back after generation and between request types, and `clean` proves it (R11–R15).

lmms-eval runs all requests of one type, of all tasks, in one call of the model; there is no point between
tasks. So: a clean-up after calls of `generate`, at most once a second; one after each request type; and
the model's `clean` as a shutdown with a receipt.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._release.release import shutdown
from .._runtime.log import logger
from .._stages.stage import Stages
from . import when_imported

if TYPE_CHECKING:
    from . import Adopted

EVERY = "1s"
"""The time between two clean-ups after generation."""

REQUESTS = (
    "loglikelihood",
    "generate_until",
    "generate_until_multi_round",
    "generate_until_agentic",
    "generate_visual_cot",
)
"""The request types of lmms-eval: each is a method of the model."""


def adopt(adopted: Adopted) -> None:
    """Replaces `evaluate`, and the `clean` of models."""
    when_imported("lmms_eval.evaluator", lambda module: _replace_evaluate(adopted, module))
    when_imported("lmms_eval.api.model", lambda module: _replace_clean(adopted, module))


def _replace_evaluate(adopted: Adopted, evaluator: ModuleType) -> None:
    def make(original: Any) -> object:
        @functools.wraps(original)
        def evaluate(*arguments: Any, **keywords: Any) -> object:
            model = type(arguments[0] if arguments else keywords["lm"])
            stages = adopted.stages = Stages()
            with ExitStack() as stack:
                for name in REQUESTS:
                    if callable(getattr(model, name, None)):
                        stack.enter_context(_cleaning(model, name, stages, 0.0))
                # The models of transformers have its `generate`, if they are imported.
                transformers = sys.modules.get("transformers.generation.utils")
                generation = getattr(transformers, "GenerationMixin", None)
                if generation is not None:
                    stack.enter_context(_cleaning(generation, "generate", stages, EVERY))
                try:
                    return original(*arguments, **keywords)
                finally:
                    share = stages.report().cleaning_share
                    logger().info("lmms-eval: cleaning took %.1f %% of the time", 100 * share)

        return evaluate

    adopted.replace(evaluator, "evaluate", make)


@contextmanager
def _cleaning(cls: type, name: str, stages: Stages, every: float | str) -> Iterator[None]:
    """Cleans up after each call of a method for as long as an evaluation runs."""
    own = vars(cls).get(name)
    original: Callable[..., object] = getattr(cls, name)

    @functools.wraps(original)
    def call(self: object, *arguments: Any, **keywords: Any) -> object:
        try:
            return original(self, *arguments, **keywords)
        finally:
            # They would keep the inputs in use while the device is cleaned.
            del self, arguments, keywords
            stages.between(name, every=every)

    setattr(cls, name, call)
    try:
        yield
    finally:
        if own is not None:
            setattr(cls, name, own)
        else:
            delattr(cls, name)


def _replace_clean(adopted: Adopted, module: ModuleType) -> None:
    nn = module.nn

    def make(original: Any) -> object:
        @functools.wraps(original)
        def clean(self: Any) -> None:
            accelerator = getattr(self, "accelerator", None)
            if accelerator is not None and hasattr(accelerator, "free_memory"):
                accelerator.free_memory()
            names = [name for name, part in vars(self).items() if isinstance(part, nn.Module)]
            adopted.receipt = shutdown(self)
            # lmms-eval deletes these attributes; a shutdown leaves None in them.
            for name in names:
                vars(self).pop(name, None)

        return clean

    adopted.replace(module.lmms, "clean", make)
