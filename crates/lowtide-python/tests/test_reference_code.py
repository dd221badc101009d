"""What suspended code, exceptions, threads, contexts and tasks hold is named and cut."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import types
import weakref
from typing import Any

import pytest
from lowtide._why.references import suspended
from lowtide._why.references.readers import references
from names import Held, failure, generator, only, steps

# Suspended code, frames and exceptions


@pytest.mark.parametrize("close_lets_go", [True, False, None])
@pytest.mark.parametrize("has_begun", [True, False])
def test_suspended_generator(
    has_begun: bool, close_lets_go: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some Pythons' close() does not let go of the variables; None: as it is in this one.
    if close_lets_go is not None:
        if close_lets_go and not suspended._drops_variables("close", has_begun):
            pytest.skip("close() does not let go of the variables in this Python")
        monkeypatch.setattr(
            suspended, "_drops_variables", lambda how, _: (how == "close") is close_lets_go
        )
    held = Held()
    gone = weakref.ref(held)
    holder = generator(held)
    if has_begun:
        next(holder)
    found = only(holder, held)
    assert (found.step, found.kind) == (": batch", "local")
    if close_lets_go is not None:
        call = "close()" if close_lets_go else "gi_frame.clear()"
        assert found.verb == "{holder}." + call
    found.cut()
    assert holder.gi_frame is None
    assert references(holder, held) == []
    del held, found
    assert gone() is None


def test_a_generator_that_only_its_end_empties_is_no_place_to_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspended, "_drops_variables", lambda *_: False)
    held = Held()
    holder = generator(held)
    found = only(holder, held)
    assert found.verb is None
    assert found.why_not == "this Python frees its variables only with the generator"
    found.cut()
    assert holder.gi_frame is None


def test_a_generator_that_will_not_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def stubborn(held: object) -> Any:
        try:
            yield held
        except GeneratorExit:
            yield held

    for lets_go in (True, False):
        monkeypatch.setattr(suspended, "_drops_variables", lambda *_, answer=lets_go: answer)
        held = Held()
        holder = stubborn(held)
        next(holder)
        with pytest.raises(TypeError, match="not cut: RuntimeError: .* ignored GeneratorExit"):
            only(holder, held).cut()
        assert holder.gi_frame is not None


def test_iterator_in_use_by_a_generator() -> None:
    rows = iter([1, 2])

    def run(source: list[Any]) -> Any:
        for row in source.pop():  # noqa: UP028
            yield row

    holder = run([rows])
    next(holder)
    frame_or_self = holder.gi_frame if sys.version_info < (3, 11) else holder
    assert references(frame_or_self, rows)[0].step in (": (a value in use)", " (inside frame)")


def test_shared_variable_of_a_generator() -> None:
    def run() -> Any:
        shared = Held()
        yield lambda: shared

    holder = run()
    inner = next(holder)
    cell = inner.__closure__[0]
    assert steps(holder, cell) == [": shared"]
    assert steps(holder, cell.cell_contents) == [": shared"]


def test_coroutines_and_async_generators() -> None:
    held = Held()

    @types.coroutine
    def pause() -> Any:
        yield

    async def wait(batch: object) -> None:
        await pause()

    async def rows(batch: object) -> Any:
        yield batch

    coroutine = wait(held)
    coroutine.send(None)
    assert steps(coroutine, held) == [": batch"]
    assert only(coroutine, coroutine.cr_await).kind == "awaits"
    only(coroutine, held).cut()
    assert coroutine.cr_frame is None

    source = rows(held)
    with pytest.raises(StopIteration):
        source.__anext__().send(None)
    assert steps(source, held) == [": batch"]
    only(source, held).cut()
    assert source.ag_frame is None


def test_running_frame_is_named_and_left_alone() -> None:
    held = Held()
    frame = sys._getframe()
    found = [one for one in references(frame, held) if one.step == ": held"]
    assert [one.verb for one in found] == [None], "no statement of another function reaches it"
    with pytest.raises(TypeError, match="is running: write `del held`"):
        found[0].cut()


def test_exception_traceback_and_frame() -> None:
    held = Held()
    error = failure(held)
    assert steps(error, held) == [".args[0]"]
    trace = error.__traceback__
    assert trace is not None and trace.tb_next is not None
    assert steps(error, trace) == [".__traceback__"]
    assert steps(trace, trace.tb_next) == [".tb_next"]
    frame = trace.tb_next.tb_frame
    assert steps(trace.tb_next, frame)[0].startswith(" frame failing() line ")
    found = only(frame, held)
    assert (found.step, found.verb) == (": batch", "{holder}.clear()")
    found.cut()
    assert references(frame, held) == []
    only(error, trace).cut()
    assert error.__traceback__ is None
    only(error, held).cut()
    assert error.args == ()


def test_exception_chains_and_notes() -> None:
    first, second, third = ValueError(), ValueError(), ValueError()
    second.__cause__ = first
    third.__context__ = second
    assert steps(second, first) == [".__cause__"]
    assert steps(third, second) == [".__context__"]
    held = Held()
    third.__notes__ = [held]
    assert steps(third, third.__notes__) == [".__notes__"]
    error = AttributeError("no such", name="x", obj=held)
    assert steps(error, held) == [".obj"]
    only(error, held).cut()
    assert error.obj is None


# Threads, contexts, tasks


def test_thread_arguments() -> None:
    held = Held()
    thread = threading.Thread(target=print, args=(held,))
    args = thread._args  # type: ignore[attr-defined]
    assert steps(thread, args) == ["._args"]
    assert steps(args, held) == ["[0]"]


def test_thread_local_of_another_thread() -> None:
    initialised: list[int] = []

    class Local(threading.local):
        def __init__(self) -> None:
            initialised.append(1)

    local, held, ready, done = Local(), Held(), threading.Event(), threading.Event()
    initialised.clear()

    def work() -> None:
        local.model = held
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    initialised.clear()
    found = references(local, held)
    assert [one.step for one in found] == [".model"]
    assert initialised == []
    found[0].cut()
    assert references(local, held) == []
    done.set()
    thread.join()


def test_context_variables() -> None:
    held, default = Held(), Held()
    variable: Any = contextvars.ContextVar("model", default=default)
    context = contextvars.copy_context()
    token = context.run(variable.set, held)
    later = context.run(variable.set, held)
    found = only(context, held)
    assert found.step == " (context variable 'model')"
    assert steps(variable, default) == [" (default)"]
    assert steps(token, variable) == [".var"]
    assert ".old_value" in steps(later, held)
    found.cut()
    assert context[variable] is None


def test_tasks_futures_and_handles() -> None:
    held = Held()

    async def serve(batch: object) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(serve(held))
        await asyncio.sleep(0)
        coroutine = task.get_coro()
        found = only(task, coroutine)
        # The loop runs in this thread: the task ends after we have returned.
        assert (found.kind, found.verb) == ("coroutine", None)
        assert steps(coroutine, held) == [": batch"]
        future = loop.create_future()
        future.set_result(held)
        assert steps(future, held) == ["._result"]
        handle = loop.call_later(60, print, held)
        cancel = only(handle, held)
        assert (cancel.step, cancel.verb) == ("._args[0]", "{holder}.cancel()")
        cancel.cut()
        assert handle.cancelled()
        found.cut()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())
