"""Calls that wait: timers, tasks of an event loop, and the statements that end them.

To take an argument away from a call would only make the call fail. It is ended where it was
registered instead.
"""

from __future__ import annotations

import sys
from typing import Any

from .look import instance_dict, is_a, item, module_value, read

_EMPTY = {"_args": "()", "args": "()", "_kwargs": "{}", "kwargs": "{}"}


def ended_thread(holder: object, name: object) -> str | None:
    """Returns the statement for an argument that a thread keeps, or None for other attributes."""
    thread = module_value("threading", "Thread")
    if thread is None or type(name) is not str or not is_a(holder, thread):
        return None
    timer = module_value("threading", "Timer")
    if is_a(holder, timer) and name in ("args", "kwargs", "function"):
        empty = _EMPTY.get(name, "None")
        end = f"timer.cancel(), timer.join(), setattr(timer, {name!r}, {empty})"
        return f"(lambda timer: ({end}))({{holder}})"
    return f"{{path}} = {_EMPTY[name]}" if name in ("_args", "_kwargs") else None


def without_initializer(holder: object, name: object) -> str | None:
    """Returns the statement that takes the initializer with its arguments from a pool of threads; None for
    other attributes. With the initializer alone, new threads would fail."""
    pool = module_value("concurrent.futures.thread", "ThreadPoolExecutor")
    if pool is None or not is_a(holder, pool):
        return None
    if name == "_initargs":
        return "{holder}.__dict__.update(_initializer=None, _initargs=())"
    # Since Python 3.14 a function makes the context of each thread, and has both.
    is_context = name == "_create_worker_context"
    return "{path} = type({holder}).prepare_context(None, ())[0]" if is_context else None


def end_task(task: Any) -> str | None:
    """Returns the statement that ends an asyncio task and waits for its end, or None if it has to be
    awaited or its loop is not one of asyncio's."""
    loop = module_value("_asyncio", "Task").get_loop(task)
    base = module_value("asyncio.base_events", "BaseEventLoop")
    if base is None or not is_a(loop, base):
        return None
    state = instance_dict(loop) or {}
    if item(state, "_closed") is True:
        return "{holder}.get_coro().close()"
    if module_value("_asyncio", "_get_running_loop")() is not None:
        return None
    if item(state, "_thread_id") is None:
        cancel = "task.cancel(), task.get_loop().run_until_complete(asyncio.wait([task]))"
    else:
        # In one call: a loop that ends with its last task takes no second one.
        ended = "task.add_done_callback(lambda _: ended.set()), task.cancel()"
        ask = f"task.get_loop().call_soon_threadsafe(lambda: ({ended}))"
        cancel = f"(lambda ended: ({ask}, ended.wait(10)))(threading.Event())"
    # A cancelled task keeps the exception, with its frames, until somebody asks for it.
    end = f"{cancel}, task._make_cancelled_error()"
    if sys.version_info >= (3, 11) and not read(task, "_callbacks"):
        return f"(lambda task: ({end}))({{holder}}); gc.collect()"
    # Who waits for the task gets the exception and keeps it; up to Python 3.10 the task keeps it for ever.
    # So the frames are emptied: those of its coroutine, and of the coroutines that this one waits for.
    frame = "(one := getattr(at, 'cr_frame', None)), (at := getattr(at, 'cr_await', None))"
    frames = f"[one for _ in range({_MOST_AWAITED}) if ({frame})[0]]"
    end = f"(lambda frames: ({end}, [one.clear() for one in frames]))({frames})"
    return f"(lambda task, at: {end})(*(lambda task: (task, task.get_coro()))({{holder}})); gc.collect()"


_MOST_AWAITED = 1000
