"""Contracts for classes of the program: how a module is torn down, and what happens after
inference.

A class that loads a model joins with one line, by a mixin or by a decorator. Its teardown drops the
model, trims, and calls the teardown of its parents, in this order. The model can be loaded again
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from ._devices.choose import device_of
from ._log import log_release, logger
from ._native import Ladder
from ._release import shutdown
from ._releasers import releaser_for
from ._stage import stages_of
from ._teardown import Step, drop_without_device, teardown_of, trim_own_garbage

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._native import Receipt
    from ._native import _DropStep as DropStep

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_COROUTINE = 0x80


class Releasable:
    """A module whose device memory can be released: `class Reranker(lowtide.Releasable, Base)`.

    `teardown()` drops what only this object holds, trims, then calls the parent's `teardown` if
    there is one. As a context manager it does so at the end of the block. Nothing depends on
    `__del__`.
    """

    def teardown(self) -> Receipt:
        """Drops what only this object holds, trims, and calls the parent's `teardown`."""
        receipt = shutdown(self, name=_title(type(self)))
        parent = getattr(super(), "teardown", None)
        if parent is not None:
            parent()
        return receipt

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _end(self.teardown, exception)


def releases(*names: str, teardown: str = "teardown") -> Callable[[C], C]:
    """Makes a class releasable: `@lowtide.releases("pipeline", "model")`.

    A teardown drops the named attributes in this order (write wrappers first); without names,
    everything that only the object holds. Then it trims, and calls the class's own method of the
    name `teardown`, or that of its parents. The class becomes a context manager, unless it is one
    already.
    """

    def decorate(cls: C) -> C:
        own = getattr(cls, teardown, None)

        def tear_down(self: object) -> Receipt:
            receipt = _drop(self, names) if names else shutdown(self, name=_title(cls))
            if own is not None:
                own(self)
            return receipt

        tear_down.__name__ = teardown
        tear_down.__qualname__ = f"{cls.__qualname__}.{teardown}"
        tear_down.__doc__ = "Drops the model, trims, then calls the class's own teardown."
        setattr(cls, teardown, tear_down)
        if not hasattr(cls, "__enter__"):
            made: Any = cls
            made.__enter__ = lambda self: self
            made.__exit__ = lambda self, *exception: _end(getattr(self, teardown), exception[1])
        return cls

    return decorate


def _end(teardown: Callable[[], object], exception: BaseException | None) -> None:
    try:
        teardown()
    except Exception as failure:
        if exception is None:
            raise
        # The program's own exception continues; this one is only logged.
        logger().error("a teardown failed: %s: %s", type(failure).__name__, failure)


def _title(cls: type) -> str:
    return f"teardown {cls.__name__}"


def _drop(module: object, names: tuple[str, ...]) -> Receipt:
    held = vars(module) if hasattr(module, "__dict__") else {}
    # An attribute that is missing or None was not loaded, or is gone already.
    steps: list[DropStep] = [
        Step(f"{type(module).__name__}.{name}", None, _setter(module, name))
        for name in names
        if held.get(name, getattr(type(module), name, None)) is not None
    ]
    # The plan is not carried out here. Its witness names afterwards who holds what has survived.
    device = device_of(None)
    planned, witness, claim_bytes = teardown_of([module], device)
    planned.clear()
    title = _title(type(module))
    del module
    trim_own_garbage(device)
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


def _setter(module: object, name: str) -> Callable[[], None]:
    return lambda: setattr(module, name, None)


def tasks(items: Iterable[T], *, device: object = None) -> Iterator[T]:
    """Yields the tasks of a run and cleans the device after each: `for task in
    lowtide.tasks(names)`.

    After each task, garbage is collected and cached memory returns to the driver, also if the loop
    ends early. What the loop's own variables hold is not touched: do the work in a function.
    """
    stages = stages_of(device)
    for item in items:
        name = item if isinstance(item, str) else str(getattr(item, "name", type(item).__name__))
        try:
            yield item
        finally:
            del item
            stages.between(name)


@overload
def after_inference(function: F, *, device: object = None) -> F: ...
@overload
def after_inference(function: None = None, *, device: object = None) -> Callable[[F], F]: ...
def after_inference(function: F | None = None, *, device: object = None) -> F | Callable[[F], F]:
    """Cleans up after each call of a function: `@lowtide.after_inference`.

    When the function has returned or raised, garbage is collected and cached memory returns to the
    driver.
    """
    if function is None:
        return lambda function: _cleaning(function, device)
    return _cleaning(function, device)


def _cleaning(function: F, device: object) -> F:
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
                stages_of(device).between(name)

        return cast(F, wait)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> object:
        try:
            return function(*arguments, **keywords)
        finally:
            # They would keep the inputs in use while the device is cleaned.
            del arguments, keywords
            stages_of(device).between(name)

    return cast(F, call)
