"""Free on idle: memory goes back by itself while nobody works.

Work holds a guard; when none is left for long enough, the steps of the idle ladder run until the
target is met. Switched off, nothing happens: no thread, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _native
from ._log import logger, say
from ._release import releaser_of

if TYPE_CHECKING:
    from threading import Event, Thread
    from types import TracebackType
    from weakref import WeakSet

    from typing_extensions import Self

    from ._native import Receipt, Working

ENVIRONMENT = "LOWTIDE_FREE_ON_IDLE"

_LOOK_LEAST_S, _LOOK_MOST_S = 0.01, 1.0
"""The policy is asked no more and no less often, so that the thread ends soon after it is told to."""


def idle(
    after: float | str | None = "5m", *, device: object = None, to: str | int | None = None
) -> Idle:
    """Switches free-on-idle on: when nothing has worked for so long, memory is given back.

    A time is a text such as "30s", or a number of seconds; `after=None` leaves it to the environment
    variable LOWTIDE_FREE_ON_IDLE alone, which has the last word where it is set: "off", "on" or a
    time. `to` is the target (the floor, where none is given).
    """
    import os

    word = os.environ.get(ENVIRONMENT, "").strip()
    if isinstance(after, bool):
        after = "on" if after else "off"
    elif isinstance(after, (int, float)):
        after = f"{round(after * 1000)}ms"
    return Idle(word or after or "off", device=device, to=to)


class Idle:
    """The switch. `with switch.work():` around each task; `close()` ends the watch."""

    def __init__(self, switch: str, *, device: object = None, to: str | int | None = None) -> None:
        self._native = _native.Idle(releaser_of(device), switch, to=to)
        self.last: Receipt | None = None
        """What the last idle release gave back."""
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
        """How long nothing may have worked."""
        return self._native.after_s

    def work(self) -> Working:
        """A task, for a `with` block: waits for a release that is under way, and nothing is released
        while it lasts. A release that you ask for yourself does not wait for its own task: end the
        task first."""
        return self._native.work()

    def tick(self) -> Receipt | None:
        """Looks whether it is time, and releases if it is. The watching thread does this by itself."""
        return self._look()[0]

    def _look(self) -> tuple[Receipt | None, float]:
        receipt, _, look_again_s = self._native.tick()
        if receipt is not None:
            self.last = say(receipt)
        return receipt, look_again_s

    def _watch(self) -> None:
        import threading

        stop = self._stop = threading.Event()
        thread = threading.Thread(
            target=_loop, args=(_weak(self), stop), name="lowtide-idle", daemon=True
        )
        self._thread = thread
        _end_at_exit(self)
        thread.start()

    def close(self) -> None:
        """Ends the watch; waits for a release that is under way. A second call does nothing."""
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


class _weak:
    """A switch that the thread does not keep: one that nobody has any more ends its watch."""

    def __init__(self, switch: Idle) -> None:
        import weakref

        self.get = weakref.ref(switch)


def _loop(switch: _weak, stop: Event) -> None:
    pause_s = _LOOK_LEAST_S
    while not stop.wait(pause_s):
        one = switch.get()
        if one is None:
            return
        try:
            _, look_again_s = one._look()
        except Exception as failure:  # noqa: BLE001 - the watch goes on, whatever it was.
            logger().error("free on idle failed: %s: %s", type(failure).__name__, failure)
            look_again_s = _LOOK_MOST_S
        del one
        pause_s = min(max(look_again_s, _LOOK_LEAST_S), _LOOK_MOST_S)


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
