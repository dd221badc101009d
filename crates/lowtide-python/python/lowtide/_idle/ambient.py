"""`LOWTIDE_FREE_ON_IDLE` for a program that only imports lowtide, and has no agent that frees more.

Nobody says when work runs, so that the framework's counters have to tell: while they stand still for
long enough, garbage is collected and cached memory returns to the driver. A captured graph that is
replayed allocates nothing and looks idle, so that nothing in use leaves the device.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from .._devices.choose import device_of, tell_of_none
from .._native import AgentError, Idle as NativeIdle, agent_status
from .._release.releasers import releaser_for
from .._runtime.log import log_summary, logger
from .._runtime.torch import absent, torch

if TYPE_CHECKING:
    from .._devices.device import Device
    from .._native import Receipt

LOOK_S = 1.0
"""How often it is looked whether there is a device by now."""

_watcher: Ambient | None = None


def start(switch: str) -> Ambient | None:
    """Starts the watch, unless the switch says off. A value that says nothing is logged."""
    global _watcher
    stop()
    try:
        native = NativeIdle(releaser_for(None), switch)
    except ValueError as unreadable:
        logger().warning("LOWTIDE_FREE_ON_IDLE: %s", unreadable)
        return None
    if not native.enabled:
        return None
    _watcher = Ambient(switch, native.after_s)
    # A thread inside a native call must not meet the end of the interpreter.
    atexit.unregister(_end)
    atexit.register(_end)
    _watcher.thread.start()
    return _watcher


def _end() -> None:
    watcher = _watcher
    stop()
    if watcher is not None and watcher.thread is not threading.current_thread():
        watcher.thread.join()


def stop() -> None:
    """Ends the watch. The program says itself when it works."""
    global _watcher
    watcher, _watcher = _watcher, None
    if watcher is not None:
        # At its next look. Nobody waits: the thread may be the caller's own.
        watcher.ended.set()


class Ambient:
    """The thread that watches the framework's counters."""

    def __init__(self, switch: str, after_s: float = 0.0) -> None:
        self._switch = switch
        self._after_s = after_s
        self.ended = threading.Event()
        self._seen: object = None
        self._native: NativeIdle | None = None
        self.last: Receipt | None = None
        self.thread = threading.Thread(target=self._watch, name="lowtide-ambient", daemon=True)

    def _watch(self) -> None:
        device = self._device()
        if device is None or _is_agents(device):
            return
        native = self._native = NativeIdle(releaser_for(device), self._switch, only_caches=True)
        logger().info(
            "LOWTIDE_FREE_ON_IDLE=%s: when nothing was allocated on %s for %g s, garbage is collected"
            " and cached memory returns to the driver. Models stay, because lowtide cannot see when"
            " work runs. To free them too, put `with lowtide.idle().work():` around each task and"
            " register models with lowtide.register_model()",
            self._switch,
            device.name,
            native.after_s,
        )

        def pause(seconds: float) -> bool:
            goes_on = not self.ended.wait(seconds)
            now = device.activity() if goes_on else None
            if now is not None and now != self._seen:
                self._seen = now
                native.notice()
            return goes_on

        native.watch(pause, self._on_release)

    def _device(self) -> Device | None:
        """Waits until the program uses a device whose counters can be read. Says once if there is none."""
        looks = 0
        while not self.ended.wait(LOOK_S):
            looks += 1
            try:
                device = device_of(None)
                # torch may be imported later, but nobody waits for longer than the idle time.
                if device is None and (
                    torch() is not None
                    or absent("torch") == "torch is not installed"
                    or looks * LOOK_S > self._after_s
                ):
                    tell_of_none(f"LOWTIDE_FREE_ON_IDLE={self._switch}")
                if device is not None and device.activity() is not None:
                    return device
            except Exception as failure:  # noqa: BLE001  The program may be importing torch.
                logger().debug("no device yet: %s: %s", type(failure).__name__, failure)
        return None

    def _on_release(self, receipt: Receipt) -> None:
        # What the release itself freed is no work.
        self.last = log_summary(receipt)


def _is_agents(device: Device) -> bool:
    """Returns whether the agent of `lowtide run` frees all memory of the device after the same time."""
    try:
        return device.kind == "cuda" and agent_status().idle_s is not None
    except AgentError:
        return False


def start_by_environment() -> None:
    """Starts the watch if the variable says so, here and in forked children."""
    switch = os.environ.get("LOWTIDE_FREE_ON_IDLE", "").strip()
    if switch:
        start(switch)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: start(switch) and None)
