"""Contracts for classes of the program: how a module is torn down, and what happens after
inference.

A class that loads a model joins with one line, by a mixin or by a decorator. Its teardown drops the
model, trims, and calls the teardown of its parents, in this order. The model can be loaded again
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from .._devices.choose import device_of
from .._native import Ladder, empty_receipt, parse_seconds
from .._release.release import shutdown
from .._release.releasers import releaser_for
from .._release.teardown import NAMES, drop_without_device, teardown_of
from .._runtime import has_exit_begun
from .._runtime.log import log_release, logger
from .._runtime.waiting import in_thread
from .stage import end_beside, stages_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._native import Receipt

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_COROUTINE = 0x80


class Releasable:
    """A module whose device memory can be released: `class Reranker(lowtide.Releasable, Base)`.

    `teardown()` drops what only this object holds, trims, then calls the parent's `teardown` if
    there is one. As a context manager it does so at the end of the block. If neither was used, the end
    of the object does it, unless the interpreter is ending: a last resort, which nothing depends on.
    """

    _lowtide_wait_s: ClassVar[float] = 60.0

    def teardown(self) -> Receipt:
        """Drops what only this object holds, trims, and calls the parent's `teardown`."""
        receipt = shutdown(self, name=_title(type(self)), wait=self._lowtide_wait_s)
        parent = getattr(super(), "teardown", None)
        if parent is not None:
            parent()
        return receipt

    def release(self) -> Receipt:
        """Does the same as `teardown`, then calls the parent's `release` if there is one."""
        receipt = self.teardown()
        parent = getattr(super(), "release", None)
        if parent is not None:
            parent()
        return receipt

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exception: BaseException | None, traceback: object) -> None:
        end_beside(exception, "a teardown", self.teardown)

    def __del__(self) -> None:
        if has_exit_begun():
            return
        try:
            if _has_memory(self):
                # Whoever lets the last reference go did not expect to wait.
                vars(self)["_lowtide_wait_s"] = 0.0
                self.teardown()
        except Exception as failure:  # noqa: BLE001  Nobody could handle it.
            logger().debug("the end of an object failed: %s: %s", type(failure).__name__, failure)
        parent = getattr(super(), "__del__", None)
        if parent is not None:
            parent()


def releases(*names: str, teardown: str = "teardown") -> Callable[[C], C]:
    """Makes a class releasable: `@lowtide.releases("pipeline", "model")`.

    A teardown, and `shutdown(obj)`, drop the named attributes in this order (write wrappers first) and
    nothing else; without names, everything that only the object holds. Then it trims, and calls the class's own method of the
    name `teardown`, or that of its parents. The class becomes a context manager, unless it is one
    already.
    """

    if names and not all(isinstance(name, str) for name in names):
        raise TypeError(
            'name the attributes as texts: @lowtide.releases("model"), or @lowtide.releases() for all'
        )

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise TypeError(f"lowtide.releases decorates a class, not {cls!r}")
        own = getattr(cls, teardown, None)

        def tear_down(self: object) -> Receipt:
            receipt = _drop(self) if names else shutdown(self, name=_title(cls))
            if own is not None:
                own(self)
            return receipt

        tear_down.__name__ = teardown
        tear_down.__qualname__ = f"{cls.__qualname__}.{teardown}"
        tear_down.__doc__ = "Drops the model, trims, then calls the class's own teardown."
        setattr(cls, teardown, tear_down)
        setattr(cls, NAMES, names)
        if not hasattr(cls, "__enter__"):
            made: Any = cls
            made.__enter__ = lambda self: self
            made.__exit__ = lambda self, *exception: end_beside(
                exception[1], "a teardown", getattr(self, teardown)
            )
        return cls

    return decorate


def _has_memory(module: object) -> bool:
    """Returns whether an object leads to device memory. If it does not, it was torn down already."""
    from .._rungs.caches import held_bytes

    device = device_of(None)
    return device is not None and held_bytes(vars(module).values(), device.name) > 0


def _title(cls: type) -> str:
    return f"teardown {cls.__name__}"


def _drop(module: object) -> Receipt:
    title = _title(type(module))
    if has_exit_begun():
        return empty_receipt(title)
    device = device_of(None)
    steps, witness, claim_bytes, *_ = teardown_of([module], device)
    del module
    if device is None:
        drop_without_device(steps)
    return log_release(
        releaser_for(device).release(
            title,
            Ladder.STAGE,
            claim_bytes=claim_bytes,
            steps=steps,
            witness=witness,
            beside_work=True,
        )
    )


def tasks(items: Iterable[T], *, device: object = None, every: float | str = 0.0) -> Iterator[T]:
    """Yields the tasks of a run and cleans the device after each: `for task in
    lowtide.tasks(names)`.

    After each task, garbage is collected and cached memory returns to the driver, also if the loop
    ends early. What the loop's own variables hold is not touched: do the work in a function.

    `every` limits how often, such as "1s": a task that ends sooner after the last clean-up is not
    cleaned up. The last one is, always.
    """
    stages = stages_of(device)
    left_out: str | None = None
    try:
        for number, item in enumerate(items, 1):
            name = _task_name(item, number)
            try:
                yield item
            finally:
                del item
                left_out = name if stages.between(name, every=every) is None else None
    finally:
        if left_out is not None:
            stages.between(left_out)


def _task_name(item: object, number: int) -> str:
    """Returns the name of a task, or its number: its own, if it is one."""
    name = item if isinstance(item, str) else getattr(item, "name", None)
    number = item if type(item) is int else number
    return name if isinstance(name, str) else f"task {number}"


@overload
def after_inference(function: F, *, device: object = None, every: float | str = 0.0) -> F: ...
@overload
def after_inference(
    function: None = None, *, device: object = None, every: float | str = 0.0
) -> Callable[[F], F]: ...
def after_inference(
    function: F | None = None, *, device: object = None, every: float | str = 0.0
) -> F | Callable[[F], F]:
    """Cleans up after each call of a function: `@lowtide.after_inference`.

    When the function has returned or raised, garbage is collected and cached memory returns to the
    driver. `every` limits how often, such as "1s": a call that ends sooner after the last clean-up is
    not cleaned up, and the memory that it leaves is there until a later one is.
    """
    parse_seconds(every)  # Refused here rather than after the first call.
    if function is None:
        return lambda function: _cleaning(function, device, every)
    return _cleaning(function, device, every)


def _cleaning(function: F, device: object, every: float | str) -> F:
    import functools

    name = getattr(function, "__name__", "inference")
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:

        @functools.wraps(function)
        async def wait(*arguments: Any, **keywords: Any) -> object:
            try:
                return await function(*arguments, **keywords)
            finally:
                del arguments, keywords
                stages = stages_of(device)
                await in_thread(lambda: stages.between(name, every=every))

        return cast(F, wait)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> object:
        try:
            return function(*arguments, **keywords)
        finally:
            # They would keep the inputs in use while the device is cleaned.
            del arguments, keywords
            stages_of(device).between(name, every=every)

    return cast(F, call)
