"""Stages: modules that use the device one after another in one process.

What a stage owns is shut down at its end, also if it ends with an exception. Then garbage is
collected and cached memory returns to the driver. So the peak is the largest stage, not the sum,
and there is a receipt after each stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._devices.choose import device_of, tell_of_none
from .._native import Stages as NativeStages, empty_receipt, parse_seconds
from .._release.releasers import releaser_for
from .._release.teardown import drop_without_device, libraries_with_groups, teardown_of
from .._runtime import has_exit_begun
from .._runtime.data import mib
from .._runtime.frames import clear_frames
from .._runtime.log import log_release, logger

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from .._native import Opened, Receipt, StagesReport, Trend
    from .._why.mark import Mark
    from .owning import Owning

T = TypeVar("T")
_WORTH_BYTES = 1 << 20
"""What a task or a stage leaves is not named below this size."""
_MOST_NAMED = 3


class Stages:
    """A sequence of stages on one device, with a report over all of them.

    `budget` limits what may be in use. A stage that says what it needs and would exceed the budget
    is refused with `WouldNotFit` before it loads anything.
    """

    def __init__(self, device: object = None, *, budget: str | int | None = None) -> None:
        found = device_of(device)
        if found is None and not has_exit_begun():
            tell_of_none("stages and tasks", "objects are dropped all the same")
        self._device = found
        self._releaser = releaser_for(found)
        self._native = NativeStages(self._releaser, budget)
        self._level: tuple[int, Mark] | None = None

    def stage(
        self,
        name: str,
        *,
        needs: str | int | None = None,
        to: str | int | None = None,
        process_groups: bool = False,
        keep_frames: bool = False,
        owns: bool = True,
    ) -> Stage:
        """Returns a stage of this sequence. The arguments are those of `lowtide.stage`."""
        return Stage(name, self, needs, to, process_groups, keep_frames, owns)

    @overload
    def between(self, name: str) -> Receipt: ...
    @overload
    def between(self, name: str, *, every: float | str) -> Receipt | None: ...
    def between(self, name: str, *, every: float | str = 0.0) -> Receipt | None:
        """Clears registered caches, collects and trims between two tasks.

        The first call sets the level: a later one is `released` only if no more is in use than
        after the first. The end of a stage ends the level.

        `every` limits how often, such as "1s": a call that comes sooner after the last clean-up does
        nothing and returns `None`.
        """
        if has_exit_begun():
            return empty_receipt(f"after {name}")
        receipt = self._native.between(name, parse_seconds(every))
        return None if receipt is None else log_release(self._kept_by(name, receipt))

    def _kept_by(self, name: str, receipt: Receipt) -> Receipt:
        """Returns the receipt of a task with what the task keeps, if more is in use than after the one
        before it."""
        in_use, last = receipt.after.in_use_bytes, self._level
        if self._device is None or in_use is None:
            return receipt
        if last is not None and in_use < last[0] + _WORTH_BYTES:
            self._level = min(in_use, last[0]), last[1]
            return receipt
        from .._why.mark import Mark
        from .._why.why import why

        if last is not None and last[1].grown(self._device.name)[1] >= _WORTH_BYTES:
            held = why(device=self._device, since=last[1]).held[:_MOST_NAMED]
            for one in [one for one in held if one.bytes >= _WORTH_BYTES]:
                words = f"{name} keeps {mib(one.bytes)}: `{one.path}` → {one.remedy()}"
                receipt = receipt.with_advice(words)
        self._level = in_use, Mark()
        return receipt

    def trend(self) -> Trend:
        """Returns the trend of memory in use over the tasks so far."""
        return self._native.trend()

    def report(self) -> StagesReport:
        """Returns what each stage used, the peak, the largest stage, the sum, and the time for
        cleaning."""
        return self._native.report()

    def html(self) -> str:
        """Returns the report as one HTML file, which loads nothing: memory over the stages, and their receipts."""
        from .._runtime.view import page

        return page("stages", self.report().to_dict())


_shared: dict[str | None, Stages] = {}


def stages_of(device: object = None) -> Stages:
    """Returns the sequence of stages that were not given one: there is one for each device."""
    found = device_of(device)
    name = None if found is None else found.name
    known = _shared.get(name)
    # After a fork there are new releasers, and the old sequence belongs to the parent.
    if known is None or known._releaser is not releaser_for(found):
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
    owns: bool = True,
) -> Stage:
    """Returns a stage: `with lowtide.stage("reranker"): model = load()`.

    It owns the models, pipelines and sessions that its thread or task makes in the block, if at its end
    only variables hold them that the block has bound; others it names. Tensors stay. With `owns=False`
    it owns only what `own` was given.

    `needs` is how much memory it will use; if that would not fit, the stage is refused before it
    loads. `to` is a target for its end. `process_groups` destroys communicators too. If an
    exception ends the stage, its traceback stays, but the local variables of frames that have ended
    are cleared, because they would keep the memory in use; `keep_frames` keeps them, for a
    debugger.
    """
    return stages_of(device).stage(
        name, needs=needs, to=to, process_groups=process_groups, keep_frames=keep_frames, owns=owns
    )


def end_beside(exception: BaseException | None, what: str, end: Callable[[], object]) -> None:
    """Ends something at the end of a `with` block. If the block has raised, a failure is only logged."""
    try:
        end()
    except Exception as failure:
        if exception is None:
            raise
        logger().error("%s failed: %s: %s", what, type(failure).__name__, failure)


class Stage:
    """A stage that lasts as long as its `with` block. Afterwards `receipt` says what its end has
    freed."""

    def __init__(
        self,
        name: str,
        stages: Stages,
        needs: str | int | None,
        to: str | int | None,
        process_groups: bool,
        keep_frames: bool,
        owns: bool,
    ) -> None:
        self.name = name
        self.stages = stages
        self.receipt: Receipt | None = None
        self._needs = needs
        self._to = to
        self._process_groups = process_groups
        self._keep_frames = keep_frames
        self._owns = owns
        self._owning: Owning | None = None
        self._owned: list[object] = []
        self._opened: Opened | None = None

    def own(self, module: T) -> T:
        """Makes the stage the owner of a module: it is shut down at the stage's end. Returns the
        module."""
        if has_exit_begun():
            return module
        if self._opened is None:
            raise RuntimeError(f"stage {self.name!r} has not begun: use it in a `with` statement")
        self._owned.append(module)
        self.look()
        return module

    def load(self, factory: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Calls a factory and makes the stage the owner of its result. Returns the result."""
        return self.own(factory(*arguments, **keywords))

    def look(self) -> None:
        """Reads what is in use now, for the peak. Useful after the module has grown."""
        if self._opened is not None and not has_exit_begun():
            self.stages._native.look(self._opened)

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise RuntimeError(f"stage {self.name!r} has already begun")
        self.receipt = None
        if has_exit_begun():
            return self
        self._opened = self.stages._native.open(self.name, self._needs)
        if self._owns:
            from .owning import Owning

            self._owning = Owning(Stage)
        return self

    def __exit__(
        self,
        kind: object,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if has_exit_begun():
            return
        if exception is not None and not self._keep_frames:
            clear_frames([exception])
        try:
            end_beside(exception, f"the end of stage {self.name}", partial(self._end, traceback))
        finally:
            self._opened = self._owning = None
            self._owned = []

    def _end(self, traceback: TracebackType | None) -> None:
        opened, owned, owning = self._opened, self._owned, self._owning
        self._owned = []
        if opened is None:
            return
        self.look()
        began = time.perf_counter()
        device = self.stages._device
        has_grown = not owned and opened.taken_bytes(self.stages._releaser) >= _WORTH_BYTES
        closing = [] if owning is None else owning.choose(owned, traceback, has_grown)
        del traceback
        steps, witness, claim_bytes, *_ = teardown_of(owned, device)
        steps[:0] = closing
        owned.clear()
        if device is None:
            drop_without_device(steps)
        elif device.kind != "cpu":
            # What the allocator took for the stage goes with it. (The C library's heap has the
            # interpreter's memory, too.)
            claim_bytes = max(claim_bytes, opened.taken_bytes(self.stages._releaser))
        receipt = log_release(
            self.stages._native.close(
                opened,
                f"stage {self.name}",
                to=self._to,
                claim_bytes=claim_bytes,
                steps=steps,
                witness=witness,
                planned_s=time.perf_counter() - began,
                libraries=libraries_with_groups(device) if self._process_groups else None,
            )
        )
        self.receipt = receipt if owning is None else owning.told(receipt, self.name, device)
