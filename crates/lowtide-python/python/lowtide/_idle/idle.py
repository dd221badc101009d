"""Free on idle: memory is released by itself while the process is idle.

Each task holds a guard. When there has been none for long enough, the idle ladder is climbed until
the target is met. What it took off the device comes back before the next task begins. Switched off,
it does nothing: no thread, no clock.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from .._devices.choose import device_of, tell_of_none
from .._native import AgentError, Idle as NativeIdle, Working, agent_suspend, parse_bytes
from .._release.releasers import releaser_for
from .._runtime import has_exit_begun
from .._runtime.log import log_restored, log_summary, logger
from .._runtime.waiting import in_thread, is_in_event_loop

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from threading import Thread
    from weakref import ReferenceType, WeakSet

    from typing_extensions import Self

    from .._native import Receipt, Restored

ENVIRONMENT = "LOWTIDE_FREE_ON_IDLE"
SUSPEND = "suspend"


def idle(
    after: float | str | None = "5m", *, device: object = None, to: str | int | None = None
) -> Idle:
    """Switches free-on-idle on: memory is released after `after` without work.

    `after` is a text such as "30s", or a number of seconds; "task" releases at the end of each task
    at once, if no other task is active. The environment variable LOWTIDE_FREE_ON_IDLE overrides it:
    "off", "on", a time or "task". With `after=None`, only the variable decides; 0 is refused. `to` is
    the target; the default is the floor. With `to="suspend"`, or `to=0`, the release is followed by
    `lowtide.suspend()`: nothing of the program is on a device until its next use of one. The program
    has to be started with `lowtide run` for that.
    """
    if has_exit_begun():
        return Idle("off")
    return Idle(_switch(after), device=device, to=to)


def is_on(after: float | str | None, to: str | int | None) -> bool:
    """Returns whether `idle` would switch it on. Refuses what `idle` refuses, and starts nothing."""
    target = None if to == SUSPEND or is_zero(to) else to
    return NativeIdle(releaser_for(None), _switch(after), to=target).enabled


def _switch(after: float | str | None) -> str:
    import os

    word = os.environ.get(ENVIRONMENT, "").strip()
    if isinstance(after, bool):
        after = "on" if after else "off"
    elif isinstance(after, (int, float)):
        after = f"{round(after * 1000)}ms"
    if after in ("0ms", "0s", "0m", "0h"):
        raise ValueError(
            'idle(0) would release again and again: "task" releases at the end of each task, "off" never'
        )
    if word:
        try:
            NativeIdle(releaser_for(None), word)
        except ValueError as unreadable:
            raise ValueError(f"{ENVIRONMENT}: {unreadable}") from None
    return word or after or "off"


class Idle:
    """Free-on-idle for one device. Put `with idle.work():` around each task; `close()` ends it."""

    def __init__(self, switch: str, *, device: object = None, to: str | int | None = None) -> None:
        self._suspends = to == SUSPEND or is_zero(to)
        target = None if self._suspends else to
        found = device_of(device)
        self._native = NativeIdle(releaser_for(found), switch, to=target)
        self.last: Receipt | None = None
        """The receipt of the last idle release."""
        self.restored: Restored | None = None
        """What came back to the device before a task, the last time that something had to."""
        self._watcher: _Watcher | None = None
        self._waker: Executor | None = None
        if self._native.enabled:
            if found is None:
                tell_of_none("lowtide.idle()")
            _end_ambient()
            self._watch()

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return self._native.enabled

    @property
    def after_s(self) -> float:
        """How long the process has to be idle, in seconds."""
        return self._native.after_s

    def work(self) -> Work:
        """Begins a task and returns it for a `with` or `async with` block. None of it is released
        while the task lasts, and a release in progress stops.

        What a release took off the device is back before this returns: models that were moved to the
        host, sessions that were closed. Raises RuntimeError if something could not come back; the
        task has not begun then. In a coroutine that would have to wait, the task begins with its
        `async with` block, and the event loop goes on meanwhile.

        A release that the program calls inside a task does not wait for that task: end the task
        first.
        """
        work = Work(self)
        if has_exit_begun():
            return work
        if self._native.is_ready() or not is_in_event_loop():
            work._begin()
        return work

    def tick(self) -> Receipt | None:
        """Releases if the process has been idle for long enough. A thread does this by itself."""
        return None if has_exit_begun() else self._released(self._native.tick().receipt)

    def _released(self, receipt: Receipt | None) -> Receipt | None:
        if receipt is not None:
            self.last = log_summary(receipt)
            if self._suspends:
                _suspend()
        return receipt

    def _watch(self) -> None:
        from weakref import ref

        self._watcher = _Watcher(self._native, ref(self))
        _watching().add(self)
        self._watcher.thread.start()

    async def _woken(self) -> Working:
        """Begins a task in a thread that all coroutines share: a thousand of them wait in one, and
        the event loop's own threads stay free. What nobody waits for any more ends in that thread."""
        import asyncio
        import contextvars
        from concurrent.futures import ThreadPoolExecutor

        self._waker = self._waker or ThreadPoolExecutor(1, "lowtide-wake")
        begun = self._waker.submit(contextvars.copy_context().run, self._native.work)
        try:
            return await asyncio.shield(asyncio.wrap_future(begun))
        except BaseException:
            begun.add_done_callback(
                lambda done: None if done.exception() else done.result().leave()
            )
            raise

    def _look_now(self) -> None:
        """Has the thread look at once whether a release is due."""
        if self._watcher is not None:
            self._watcher.changed.set()

    def close(self) -> None:
        """Ends the thread; waits for a release in progress. A second call does nothing."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None and not has_exit_begun():
            watcher.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Work:
    """A task. Nothing is released while it lasts."""

    __slots__ = ("_idle", "_working")

    def __init__(self, idle: Idle) -> None:
        self._idle = idle
        self._working: Working | None = None

    def checkpoint(self) -> str:
        """Asks whether the work should stop: returns "go", "abort" or "retract"."""
        if has_exit_begun():
            return "go"
        if self._working is None:
            raise RuntimeError("this task has not begun: use it in a `with` or `async with` block")
        return self._working.checkpoint()

    def leave(self) -> None:
        """Ends the task. With `idle("task")`, memory is released before this returns; in a coroutine,
        a thread does it. A second call does nothing."""
        working, self._working = self._working, None
        if working is None:
            return
        if not self._idle._native.at_end or has_exit_begun():
            working.leave()
        elif is_in_event_loop():
            working.leave()
            self._idle._look_now()
        else:
            self._end(working)

    def _begin(self) -> None:
        self._took(self._idle._native.work())

    def _took(self, working: Working) -> None:
        self._working = working
        if working.restored is not None:
            self._idle.restored = log_restored(working.restored)

    def _end(self, working: Working) -> None:
        tick = working.end()
        if tick is not None:
            self._idle._released(tick.receipt)

    def __enter__(self) -> Self:
        if self._working is None and not has_exit_begun():
            self._begin()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.leave()

    async def __aenter__(self) -> Self:
        if self._working is None:
            self._took(await self._idle._woken())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        working, self._working = self._working, None
        if working is not None and self._idle._native.at_end:
            await in_thread(lambda: self._end(working))
        elif working is not None:
            working.leave()


class _Watcher:
    """The thread that watches for idle time, until it is told to end or nobody has the switch."""

    def __init__(self, native: NativeIdle, switch: ReferenceType[Idle]) -> None:
        import threading

        self._native = native
        self._switch = switch
        self._ends = False
        self.changed = threading.Event()
        self.thread: Thread = threading.Thread(target=self._watch, name="lowtide-idle", daemon=True)

    def end(self) -> None:
        """Ends the thread and waits for it."""
        import threading

        self._ends = True
        self.changed.set()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _watch(self) -> None:
        self._native.watch(self._pause, self._on_release)

    def _pause(self, seconds: float) -> bool:
        self.changed.wait(seconds)
        self.changed.clear()
        return not self._ends and self._switch() is not None

    def _on_release(self, receipt: Receipt) -> None:
        try:
            owner = self._switch()
            if owner is not None:
                owner._released(receipt)
            else:
                log_summary(receipt)
        except Exception as failure:  # noqa: BLE001 - the watch goes on after any error.
            logger().error("free on idle failed: %s: %s", type(failure).__name__, failure)


def is_zero(to: str | int | None) -> bool:
    """Returns whether a target is a program without anything on the device."""
    try:
        return to is not None and parse_bytes(to) == 0
    except ValueError:
        return False  # "floor", or "free 2 GiB".


def _suspend() -> None:
    """Takes the program off its devices. A task that has begun meanwhile brings it back at its first
    use of one."""
    try:
        agent_suspend()
    except AgentError as refusal:
        logger().warning("the idle program is not suspended: %s", refusal)


def _end_ambient() -> None:
    """Ends the watch that the variable alone has started: the program says itself when it works."""
    import sys

    ambient = sys.modules.get(f"{__package__}.ambient")
    if ambient is not None:
        ambient.stop()


@cache
def _watching() -> WeakSet[Idle]:
    """Returns the switches whose threads end at exit."""
    import atexit
    import weakref

    atexit.register(_end_all)
    return weakref.WeakSet()


def _end_all() -> None:
    for switch in list(_watching()):
        switch.close()
