"""`Sleepable`: a mixin for actors, with the names that RL code calls; and the gate that a group's pause closes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from .._idle.gate import Gate

if TYPE_CHECKING:
    from .._native import Pass


class Paused(RuntimeError):
    """Raised by `work()` of a paused actor whose calls come one after another: a wait would keep `resume` out."""


class Sleepable:
    """An actor that sleeps and wakes by `sleep` and `wake_up`, and whose work a group can pause.

        @ray.remote(num_gpus=1)
        class Rollout(lowtide.ray.Sleepable):
            async def generate(self, prompts):
                async with self.work():
                    ...

    It needs an agent (`lowtide.ray.runtime_env`), or tags (`lowtide.tag`).
    """

    def sleep(self, level: int = 1) -> list[dict[str, Any]]:
        """Moves the memory of this process to the host. Returns a receipt for each device. Every level keeps
        all data. Raises lowtide.AgentError while work is running."""
        from .._sleep.sleep import sleep

        return [receipt.to_dict() for receipt in sleep()]

    def wake_up(self, tags: list[str] | None = None) -> int:
        """Brings memory back: all of it, or these tags. Returns the bytes."""
        from .._sleep.sleep import wake

        return wake(*tags or ())

    def work(self) -> Work:
        """Returns work for `with` or `async with`, which a pause lets end, and does not let begin.

        In an actor whose calls come one after another, a call of it that is paused raises `Paused`.
        """
        return Work()


class Work:
    """Work behind the gate of this process."""

    def __init__(self) -> None:
        self._gate = _gate()
        self._pass: Pass | None = None

    def __enter__(self) -> Pass:
        if not self._gate.open and _would_keep_resume_out():
            raise Paused(
                "this actor is paused, and its calls come one after another: resume its group first"
            )
        self._pass = self._gate.enter()
        return self._pass

    def __exit__(self, *_exception: object) -> None:
        if self._pass is not None:
            self._pass.leave()

    async def __aenter__(self) -> Pass:
        # A pass is taken in a thread: the gate may close just now.
        self._pass = await asyncio.to_thread(self._gate.enter)
        return self._pass

    async def __aexit__(self, *_exception: object) -> None:
        self.__exit__()


def _would_keep_resume_out() -> bool:
    """Returns whether a wait in this call would hold up all later calls of the actor."""
    import ray

    worker = ray._private.worker.global_worker
    if worker.mode != ray.WORKER_MODE or worker.actor_id.is_nil():
        return False
    core = worker.core_worker
    return bool(core.current_actor_is_asyncio() or core.current_actor_max_concurrency() == 1)


_pausing: Future[object] | None = None


def pause_process(_actor: object, wait_s: float) -> bool:
    """Closes the gate of this process. Returns False while it waits for work to end: call it again.

    An event loop must not be held up, because the work that is waited for needs it.
    """
    global _pausing
    gate = _gate()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        gate.pause("in_place", wait_s)
        return True
    if _pausing is None:
        thread = ThreadPoolExecutor(1)
        _pausing = thread.submit(gate.pause, "in_place", wait_s)
        thread.shutdown(wait=False)
    if not _pausing.done():
        return False
    ended, _pausing = _pausing, None
    ended.result()
    return True


def resume_process(_actor: object, _wait_s: float) -> bool:
    """Opens the gate of this process, after its cached memory was returned."""
    _gate().resume()
    return True


@cache
def _gate() -> Gate:
    """The one gate of this process: a pause ends with the object that has made it."""
    return Gate()
