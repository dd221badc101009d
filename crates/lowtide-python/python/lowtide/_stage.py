"""Stages: modules that hand the device on, one after another in one process.

What a stage owns is shut down at its end, whether it ends well or by an exception; then garbage is
collected and what was cached goes back to the driver. So the peak is the largest stage, never the
sum, and a receipt stands between each two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native
from ._log import logger, say
from ._release import CACHE, _releaser, groups, plan, releaser_of, tidy

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._native import Opened, Receipt

T = TypeVar("T")

LADDER = ("drop", *CACHE)
WITH_GROUPS = ("quiesce", "drop", "libraries", *CACHE)


class Stages:
    """A sequence of stages on one device, with a report over all of them.

    `budget` is what may be in use: a stage that says what it needs is refused where it would bring
    more (`WouldNotFit`), before it loads anything.
    """

    def __init__(self, device: object = None, *, budget: str | int | None = None) -> None:
        self._releaser = releaser_of(device)
        self._native = _native.Stages(self._releaser, budget)

    def stage(self, name: str, **options: Any) -> Stage:
        """One stage, as `lowtide.stage`, in this sequence."""
        return Stage(name, stages=self, **options)

    def between(self, name: str) -> Receipt:
        """Between two tasks: collect, then trim."""
        return say(self._native.between(name))

    def report(self) -> dict[str, Any]:
        """What all stages took: each stage, and `peak_bytes`, `largest_bytes` (the largest stage
        alone), `sum_bytes` (all of them at once), `cleaning_s` and `cleaning_share` (0 to 1)."""
        return self._native.report()


_shared: dict[str | None, Stages] = {}


def stages_of(device: object = None, *, or_host: bool = False) -> Stages:
    """The sequence that stages without one of their own belong to: one for each device."""
    from ._torch import device_of, torch

    found = device_of(device)
    if found is None and or_host and torch() is not None:
        # Without an accelerator the models are in the host's memory, and are torn down all the same.
        found = device_of("cpu")
    name = None if found is None else found.name
    known = _shared.get(name)
    # A fork has forgotten the releasers, and with them the books.
    if known is None or known._releaser is not _releaser(found):
        known = _shared[name] = Stages(found)
    return known


def stage(
    name: str,
    *,
    device: object = None,
    needs: str | int | None = None,
    to: str | int | None = None,
    process_groups: bool = False,
    keep_frames: bool = False,
) -> Stage:
    """A stage: `with lowtide.stage("reranker") as stage: model = stage.own(load())`.

    `needs` is what it will take, and it is refused before it loads where that would not fit. `to` is
    a target for its end. `process_groups` ends communicators too. An exception that passes through
    keeps its traceback, but the locals of frames that have ended are cleared, because they would keep
    the memory; `keep_frames` leaves them, for a debugger.
    """
    return Stage(
        name,
        stages=stages_of(device, or_host=True),
        needs=needs,
        to=to,
        process_groups=process_groups,
        keep_frames=keep_frames,
    )


class Stage:
    """A stage that lasts as long as its `with` block. After it, `receipt` says what its end gave back."""

    def __init__(
        self,
        name: str,
        *,
        stages: Stages,
        needs: str | int | None = None,
        to: str | int | None = None,
        process_groups: bool = False,
        keep_frames: bool = False,
    ) -> None:
        self.name = name
        self.stages = stages
        self.receipt: Receipt | None = None
        self._needs = needs
        self._to = to
        self._process_groups = process_groups
        self._keep_frames = keep_frames
        self._owned: list[object] = []
        self._opened: Opened | None = None

    def own(self, module: T) -> T:
        """Makes a module the stage's: it is shut down at its end. Returns the module."""
        if self._opened is None:
            raise RuntimeError(f"stage {self.name!r} has not begun: use it in a `with` statement")
        self._owned.append(module)
        self.look()
        return module

    def load(self, factory: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Makes what the factory makes the stage's."""
        return self.own(factory(*arguments, **keywords))

    def look(self) -> None:
        """Looks at what is in use now, for the peak: worth it where the module has just grown."""
        if self._opened is not None:
            self.stages._native.look(self._opened)

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise RuntimeError(f"stage {self.name!r} lasts already")
        self.receipt = None
        self._opened = self.stages._native.open(self.name, self._needs)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is not None and not self._keep_frames:
            clear_frames(exception)
        del traceback
        try:
            self._end()
        except Exception as failure:
            if exception is None:
                raise
            # The program's own exception goes on; this one is told.
            words = f"{type(failure).__name__}: {failure}"
            logger().error("the end of stage %s failed: %s", self.name, words)
        finally:
            self._opened = None
            self._owned = []

    def _end(self) -> None:
        opened, owned = self._opened, self._owned
        self._owned = []
        if opened is None:
            return
        self.look()
        began = time.perf_counter()
        steps, witness = plan(owned)
        owned.clear()
        device = self.stages._releaser.device
        tidy(device)
        self.receipt = say(
            self.stages._native.close(
                opened,
                f"stage {self.name}",
                WITH_GROUPS if self._process_groups else LADDER,
                to=self._to,
                steps=steps,
                witness=witness,
                planned_s=time.perf_counter() - began,
                parts=groups(device) if self._process_groups else None,
            )
        )


def clear_frames(exception: BaseException) -> None:
    """Clears the locals of every frame of an exception, and of those it came from, that has ended.
    What is still running is left alone; so is a generator, whose code would run."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exception]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        traceback = one.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            # CO_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE, CO_ASYNC_GENERATOR
            if not frame.f_code.co_flags & (0x20 | 0x80 | 0x100 | 0x200):
                try:
                    frame.clear()
                except RuntimeError:
                    pass  # It is running.
            traceback = traceback.tb_next
