"""Readers for tasks, contexts and threads.

asyncio, contextvars and thread-locals keep values beside the call stack. They are written in C; the
readers use their own getters and never start anything in them.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from types import FrameType, FunctionType, MethodType
from typing import Any
from weakref import ReferenceType

from ..._native import referents, refers, thread_state
from ..._runtime.heap import objects_of
from .look import (
    global_name,
    instance_dict,
    is_a,
    item,
    members,
    module_value,
    pairs,
    plain,
    read,
    type_name,
)
from .reference import UNWRITTEN, Reader, Reference, keeps
from .spelling import attribute_step

OF_ANOTHER_THREAD = "of another thread"
CANCELLED = f".cancel(){UNWRITTEN}and wait for its end"
_MOST_AWAITED = 1000
_MOST_S = 10
_future: Reader = keeps(
    "result", "a future keeps its result: drop the future", "_result", "_exception", "_loop"
)


def task_type() -> Any:
    """Returns the class of asyncio's tasks, or None if asyncio is not imported."""
    return module_value("_asyncio", "Task")


def task_name(value: object) -> str | None:
    """Returns the name of an asyncio task, or None for other objects."""
    task = task_type()
    if task is not None and is_a(value, task):
        return plain(task.get_name(value))
    python_task = module_value("asyncio.tasks", "_PyTask")
    if python_task is not None and is_a(value, python_task):
        return plain(item(instance_dict(value) or {}, "_name"))
    return None


def is_pending(value: object) -> bool:
    """Returns whether this is a task of asyncio that has not ended."""
    task = task_type()
    return task is not None and is_a(value, task) and not task.done(value)


def thread_name(value: object) -> str | None:
    """Returns the name of a thread object, or None for other objects."""
    thread = module_value("threading", "Thread")
    if thread is None or not is_a(value, thread):
        return None
    name = item(instance_dict(value) or {}, "_name")
    return plain(name) if name is not None else None


def read_task(holder: Any, held: object) -> Iterator[Reference]:
    """Yields the coroutine of a task, and the future that it waits for."""
    get_context = getattr(task_type(), "get_context", None)
    if get_context is not None and get_context(holder) is held:
        why = "a task keeps its context: cancel the task, or set the variable there"
        yield Reference(" (context)", "context", why_not=why, reach="{holder}.get_context()")
    if task_type().done(holder):
        return  # It has nothing to cancel. Its result or its exception is all that it keeps.
    verb, act = _ending(holder)
    why = "cancel the task and let its event loop run"
    if task_type().get_coro(holder) is held:
        reach = "{holder}.get_coro()"
        yield Reference("", "coroutine", verb, act, why_not=why, reach=reach)
    if read(holder, "_fut_waiter") is held:
        yield Reference("._fut_waiter", "awaits", verb, act, why_not=why)


def _ending(task: Any) -> tuple[str | None, Callable[[], object]]:
    """Returns the statement that ends an asyncio task, and what does so; no statement if it has to be awaited or
    its loop is not one of asyncio's."""
    loop = task_type().get_loop(task)
    base = module_value("asyncio.base_events", "BaseEventLoop")
    if base is not None and item(instance_dict(loop) or {}, "_closed") is True:
        return "{holder}.get_coro().close()", lambda: task.get_coro().close()
    if base is None or not is_a(loop, base) or module_value("_asyncio", "_get_running_loop")():
        return None, functools.partial(_cancel, task)
    return f"{{holder}}{CANCELLED}", functools.partial(_end, task)


def _cancel(task: Any) -> None:
    """Cancels a task, which ends later. If its loop runs in another thread, only that may touch it."""
    loop = task.get_loop()
    is_elsewhere = loop.is_running() and module_value("_asyncio", "_get_running_loop")() is not loop
    loop.call_soon_threadsafe(task.cancel) if is_elsewhere else task.cancel()


def _end(task: Any) -> None:
    """Cancels a task, waits for its end, and drops what it keeps afterwards."""
    loop, frames = task.get_loop(), list[FrameType]()
    # Who waits for the task gets the exception and keeps it; up to Python 3.10 the task keeps it for ever.
    # So the frames are emptied: those of its coroutine, and of the coroutines that this one waits for.
    at = task.get_coro() if sys.version_info < (3, 11) or read(task, "_callbacks") else None
    while (frame := getattr(at, "cr_frame", None)) is not None and len(frames) < _MOST_AWAITED:
        frames.append(frame)
        at = getattr(at, "cr_await", None)
    if loop.is_running():
        ended = threading.Event()

        def cancel() -> None:
            # In one call: a loop that ends with its last task takes no second one.
            task.add_done_callback(lambda _: ended.set())
            task.cancel()

        loop.call_soon_threadsafe(cancel)
        ended.wait(_MOST_S)
    else:
        task.cancel()
        loop.run_until_complete(module_value("asyncio.tasks", "wait")([task]))
    # A cancelled task keeps the exception, with its frames, until somebody asks for it.
    task._make_cancelled_error()
    del frame, at
    while frames:
        frames.pop().clear()
    gc.collect()


def read_future(holder: object, held: object) -> Iterator[Reference]:
    """Yields the result, exception and callbacks of a future."""
    yield from _future(holder, held)
    callbacks = read(holder, "_callbacks")
    for index, entry in enumerate(callbacks if type(callbacks) is list else ()):
        if type(entry) is tuple and entry and entry[0] is held:
            verb = "{holder}.remove_done_callback({path})"
            yield Reference(f"._callbacks[{index}][0]", "callback", verb)
        elif type(entry) is tuple and any(one is held for one in entry[1:]):
            why = "a callback keeps its context: remove the callback, or set the variable there"
            yield Reference(f"._callbacks[{index}][1]", "context", why_not=why)


def read_context(holder: Context, held: object) -> Iterator[Reference]:
    """Yields the value that a context variable has in one context."""
    for position, (variable, value) in enumerate(Context.items(holder)):
        if value is held:
            where, at = global_name(variable), f"[{position}]"
            # In the context of the thread that asks there is no need to enter it.
            is_here = variable.get(None) is held
            context = "contextvars.copy_context()" if is_here else "{holder}"
            known = f"list({context}){at}"
            if where is not None:
                known = f"sys.modules[{where[0]!r}].{where[1]}"
            verb = f"{known}.set(None)" if is_here else f"{{holder}}.run({known}.set, None)"
            act = None
            if sum(Context.get(one, variable) is held for one in objects_of(Context)) > 1:
                verb, act = f"{{path}}{UNWRITTEN}None", functools.partial(_drop, variable, held)
            remark = f"context variable {plain(variable.name)!r}"
            yield Reference(
                f" ({remark})",
                "context",
                verb,
                act,
                via=tuple(_inside(holder)),
                reach=f"{context}[{known}]",
                imports=("sys", "contextvars"),
                remark=remark,
            )


def _drop(variable: ContextVar[Any], value: object) -> None:
    """Sets a variable to None in every context that has this value: a context is copied for each task and each call
    that is scheduled, and the copies share the tree of their values."""
    if variable.get(None) is value:
        variable.set(None)
    for one in objects_of(Context):
        if one.get(variable) is value:
            one.run(variable.set, None)


def _inside(holder: object) -> Iterator[int]:
    """Yields the ids of the tree in which a context keeps its values."""
    for referent in referents(holder):
        if type_name(type(referent)).startswith("hamt"):
            yield id(referent)
            yield from _inside(referent)


def read_variable(holder: ContextVar[Any], held: object) -> Iterator[Reference]:
    """Yields the default of a context variable."""
    if held is not holder.name and refers(holder, held):
        why = "a context variable keeps its default"
        yield Reference(" (default)", "default", why_not=why)


read_token: Reader = keeps(
    "token", "a token keeps the previous value: drop the token", "old_value", "var"
)


def read_thread_local(holder: object, held: object) -> Iterator[Reference]:
    """Yields the attributes of a thread-local, in every thread."""
    for table in referents(holder):
        if type(table) is not dict:
            continue
        for owner, attributes in pairs(table):
            # One dict for each thread, under a key that stands for the thread.
            if type(owner) is str or type(attributes) is not dict:
                continue
            via = (id(table), id(attributes))
            if attributes is held:
                yield Reference("", "thread-local", why_not="cut in this dict", via=via[:1])
            for key, value in pairs(attributes):
                if value is held:
                    step = attribute_step(key)
                    is_here = _is_of_this_thread(holder, owner)
                    reach = f"{{holder}}{step}" if is_here else f"{{holder}}{UNWRITTEN}{step}"
                    act = None if is_here else functools.partial(attributes.update, {key: None})
                    remark = "" if is_here else OF_ANOTHER_THREAD
                    verb = "{path} = None"
                    yield Reference(
                        step, "thread-local", verb, act, via=via, reach=reach, remark=remark
                    )


def _is_of_this_thread(holder: object, owner: object) -> bool:
    """Returns whether a key of a thread-local's table stands for this thread.

    To look at the attributes would run `__init__` of a subclass for this thread.
    """
    if type(owner) is ReferenceType:
        # Up to Python 3.12 the state of a thread has an object for each thread-local.
        mark = (thread_state() or {}).get(f"thread.local.{id(holder):#x}")
        return mark is not None and owner() is mark
    local = module_value("_thread", "_local")()
    local.is_here = True
    tables = [one for one in referents(local) if type(one) is dict]
    return any(key is owner for table in tables for key, _ in pairs(table))


def read_ssl(holder: object, held: object) -> Iterator[Reference]:
    """Yields the callback that chooses a certificate by the server's name."""
    # The class of Python shows the function inside of it.
    getter = vars(module_value("_ssl", "_SSLContext"))["sni_callback"]
    if getter.__get__(holder) is held:
        yield Reference(".sni_callback", "callback", "{path} = None")


_DATABASE = {
    0: "set_progress_handler(None, 0)",
    1: "set_trace_callback(None)",
    5: "set_authorizer(None)",
}
"""What unregisters a callback of a database, by the number of arguments that it is called with."""


def read_database(holder: object, held: object) -> Iterator[Reference]:
    """Yields a callback of a connection of sqlite3, which is known by what it is called with."""
    function = getattr(held, "__func__", held) if type(held) is MethodType else held
    if type(function) is FunctionType and refers(holder, held):
        undo = _DATABASE.get(function.__code__.co_argcount - (function is not held))
        if undo is not None:
            yield Reference(" (callback)", "registered hook", f"{{holder}}.{undo}", reach="")


def read_handle(holder: object, held: object) -> Iterator[Reference]:
    """Yields the function and arguments of a call that an event loop has scheduled."""
    for name, _, value in members(holder):
        if name in ("_callback", "_args") and value is held:
            yield Reference(f".{name}", "scheduled call", "{holder}.cancel()")
        elif name == "_args" and type(value) is tuple and any(part is held for part in value):
            index = next(at for at, part in enumerate(value) if part is held)
            step, verb = f"._args[{index}]", "{holder}.cancel()"
            yield Reference(step, "scheduled call", verb, via=(id(value),))
