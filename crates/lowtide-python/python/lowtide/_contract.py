"""Contracts for other people's classes: how a module is torn down, and what happens after inference.

A module that loads a model joins with one line, by a mixin or by a decorator. Its teardown drops the
model, then trims, then does what its parents do, in this order; it can be loaded again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ._log import logger, say
from ._release import CACHE, Step, _releaser, plan, shutdown, tidy
from ._stage import stages_of

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._native import Receipt

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_COROUTINE = 0x80


class Releasable:
    """A module whose device memory can be given back: `class Reranker(lowtide.Releasable, Base)`.

    `teardown()` lets go of what it alone holds, trims, then calls the parent's `teardown`, if there
    is one. As a context manager it does so at the end of the block. Nothing hangs on `__del__`.
    """

    def teardown(self) -> Receipt:
        receipt = shutdown(self, name=f"teardown {type(self).__name__}")
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

    The named attributes are dropped in this order (write wrappers first); without names, whatever the
    heap says that the object has to itself. Then memory is trimmed, then the class's own method of
    the name `teardown`, or its parents', is called. The class becomes a context manager, unless it is
    one.
    """

    def decorate(cls: C) -> C:
        own = getattr(cls, teardown, None)

        def tear_down(self: Any) -> Receipt:
            receipt = _drop(self, names) if names else shutdown(self, name=_title(cls))
            if own is not None:
                own(self)
            return receipt

        tear_down.__name__ = teardown
        tear_down.__qualname__ = f"{cls.__qualname__}.{teardown}"
        tear_down.__doc__ = "Drops the model, trims, then does what the class itself does."
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
        # The program's own exception goes on; this one is told.
        logger().error("a teardown failed: %s: %s", type(failure).__name__, failure)


def _title(cls: type) -> str:
    return f"teardown {cls.__name__}"


def _drop(module: Any, names: tuple[str, ...]) -> Receipt:
    from ._torch import device_of

    held = vars(module) if hasattr(module, "__dict__") else {}
    # What is not there was not loaded, or is gone already.
    steps = [
        Step(f"{type(module).__name__}.{name}", None, _setter(module, name))
        for name in names
        if held.get(name, getattr(type(module), name, None)) is not None
    ]
    # What the heap says is not cut here: it only tells afterwards who has survived.
    planned, witness = plan([module])
    planned.clear()
    title = _title(type(module))
    del module
    device = device_of(None) or device_of("cpu")
    tidy(device)
    return say(
        _releaser(device).release(
            title, ("drop", *CACHE), steps=steps, witness=witness, beside_work=True
        )
    )


def _setter(module: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(module, name, None)


def tasks(items: Iterable[T], *, device: object = None) -> Iterator[T]:
    """The tasks of a run, with a clean device between each two: `for task in lowtide.tasks(names)`.

    After each, garbage is collected and what was cached goes back to the driver, also where the loop
    ends early. What the loop's own variables still hold is not touched: do the work in a function.
    """
    books = stages_of(device)
    for item in items:
        name = item if isinstance(item, str) else str(getattr(item, "name", type(item).__name__))
        try:
            yield item
        finally:
            del item
            books.between(name)


def after_inference(function: F | None = None, *, device: object = None) -> Any:
    """Cleans up after each call of a function: `@lowtide.after_inference`.

    When it has returned or raised, garbage is collected and what was cached goes back to the driver.
    """
    if function is None:
        return lambda function: after_inference(function, device=device)
    import functools

    name = getattr(function, "__name__", "inference")
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:

        @functools.wraps(function)
        async def wait(*arguments: Any, **keywords: Any) -> Any:
            try:
                return await function(*arguments, **keywords)
            finally:
                del arguments, keywords
                stages_of(device).between(name)

        return wait

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        finally:
            # They would keep the inputs while the device is cleaned.
            del arguments, keywords
            stages_of(device).between(name)

    return call
