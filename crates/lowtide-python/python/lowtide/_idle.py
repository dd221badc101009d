"""Free on idle: memory is released by itself while the process is idle.

Each task holds a guard. When there has been none for long enough, the idle ladder is climbed until
the target is met. Switched off, it does nothing: no thread, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._log import log_release, logger
from ._native import Idle as NativeIdle
from ._releasers import releaser_of

if TYPE_CHECKING:
    from threading import Event, Thread
    from types import TracebackType
    from weakref import ReferenceType, WeakSet

    from typing_extensions import Self

    from ._native import Receipt, Working

ENVIRONMENT = "LOWTIDE_FREE_ON_IDLE"


def idle(
    after: float | str | None = "5m", *, device: object = None, to: str | int | None = None
) -> Idle:
    """Switches free-on-idle on: memory is released after `after` without work.

    `after` is a text such as "30s", or a number of seconds. The environment variable
    LOWTIDE_FREE_ON_IDLE overrides it: "off", "on" or a time. With `after=None`, only the variable
    decides. `to` is the target; the default is the floor.
    """
    import os

    word = os.environ.get(ENVIRONMENT, "").strip()
    if isinstance(after, bool):
        after = "on" if after else "off"
    elif isinstance(after, (int, float)):
        after = f"{round(after * 1000)}ms"
    return Idle(word or after or "off", device=device, to=to)


class Idle:
    """Free-on-idle for one device. Put `with idle.work():` around each task; `close()` ends it."""

    def __init__(self, switch: str, *, device: object = None, to: str | int | None = None) -> None:
        self._native = NativeIdle(releaser_of(device), switch, to=to)
        self.last: Receipt | None = None
        """The receipt of the last idle release."""
        self._stop: Event | None = None
        self._thread: Thread | None = None
        if self._native.enabled:
            self._watch()

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return self._native.enabled

    @property
    def after_s(self) -> float:
        """How long the process has to be idle, in seconds."""
        return self._native.after_s

    def work(self) -> Working:
        """Returns a task for a `with` block. A release in progress stops; none begins while the
        task lasts.

        A release that the program calls inside a task does not wait for that task: end the task
        first.
        """
        return self._native.work()

    def tick(self) -> Receipt | None:
        """Releases if the process has been idle for long enough. A thread does this by itself."""
        receipt = self._native.tick().receipt
        if receipt is not None:
            self.last = log_release(receipt)
        return receipt

    def _watch(self) -> None:
        import threading
        from weakref import ref

        stop = self._stop = threading.Event()
        thread = threading.Thread(
            target=_watch,
            args=(self._native, ref(self), stop),
            name="lowtide-idle",
            daemon=True,
        )
        self._thread = thread
        _end_at_exit(self)
        thread.start()

    def close(self) -> None:
        """Ends the thread; waits for a release in progress. A second call does nothing."""
        stop, thread = self._stop, self._thread
        self._stop = self._thread = None
        if stop is not None and thread is not None:
            import threading

            stop.set()
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _watch(native: NativeIdle, switch: ReferenceType[Idle], stop: Event) -> None:
    """Watches until `stop` is set or nobody has the switch any more."""

    def pause(seconds: float) -> bool:
        return not stop.wait(seconds) and switch() is not None

    def on_release(receipt: Receipt) -> None:
        try:
            log_release(receipt)
            owner = switch()
            if owner is not None:
                owner.last = receipt
        except Exception as failure:  # noqa: BLE001 - the watch goes on after any error.
            logger().error("free on idle failed: %s: %s", type(failure).__name__, failure)

    native.watch(pause, on_release)


_watching: WeakSet[Idle] | None = None


def _end_at_exit(switch: Idle) -> None:
    global _watching
    if _watching is None:
        import atexit
        import weakref

        _watching = weakref.WeakSet()
        atexit.register(_end_all)
    _watching.add(switch)


def _end_all() -> None:
    for switch in list(_watching or ()):
        switch.close()
