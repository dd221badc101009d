"""docling-serve: models leave the device while the queue is empty (R25–R36).

docling-serve keeps its converters, and with them their models, for as long as it runs. Its own engine,
`LocalOrchestrator`, converts in threads of this process; a conversion is lazy, so that only the queue
says when one has ended. Here a task lasts from its entry into the queue until everything in the queue is
done. When there has been none for long enough, the converters are cleared and the idle ladder is climbed.
The next task makes its converter anew, as the first one did.

The engines RQ and Ray run the models in other processes, where this does nothing.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._devices.choose import device_of
from .._idle.idle import idle
from .._rungs.registry import register_cache
from .._runtime.log import logger
from . import when_imported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .._idle.idle import Idle, Work
    from . import Adopted

AFTER = "5m"
"""How long the queue is empty before memory is freed. The variable LOWTIDE_FREE_ON_IDLE overrides it."""

_OTHER_ENGINES = {
    "docling_jobkit.orchestrators.rq.orchestrator": "RQOrchestrator",
    "docling_jobkit.orchestrators.ray.orchestrator": "RayOrchestrator",
}


def adopt(adopted: Adopted) -> None:
    """Replaces `enqueue` and `warm_up_caches` of the local engine."""
    local = "docling_jobkit.orchestrators.local.orchestrator"
    when_imported(local, lambda module: _replace_local(adopted, module.LocalOrchestrator))
    for name, cls in _OTHER_ENGINES.items():
        when_imported(name, functools.partial(_replace_other, adopted, cls))


def _replace_local(adopted: Adopted, cls: type) -> None:
    queues: weakref.WeakKeyDictionary[object, Queue] = weakref.WeakKeyDictionary()

    def queue_of(orchestrator: object) -> Queue:
        if orchestrator not in queues:
            queues[orchestrator] = Queue(adopted, orchestrator)
        return queues[orchestrator]

    def make(original: Any) -> object:
        @functools.wraps(original)
        async def call(self: Any, *arguments: Any, **keywords: Any) -> object:
            async with queue_of(self).task():
                return await original(self, *arguments, **keywords)

        return call

    # At boot the models are loaded without a task in the queue.
    for name in ("enqueue", "warm_up_caches"):
        adopted.replace(cls, name, make)


def _replace_other(adopted: Adopted, cls: str, module: ModuleType) -> None:
    def make(original: Any) -> object:
        @functools.wraps(original)
        async def process_queue(self: Any) -> object:
            logger().warning(
                "docling-serve: %s runs models in other processes, where memory is not freed. Start"
                " those with `lowtide run --idle`",
                cls,
            )
            return await original(self)

        return process_queue

    adopted.replace(getattr(module, cls), "process_queue", make)


class Queue:
    """The queue of an engine: one task of lowtide's lasts for as long as anything is in it."""

    def __init__(self, adopted: Adopted, orchestrator: Any) -> None:
        self._adopted = adopted
        # Referenced weakly: its end is not delayed.
        self._orchestrator = weakref.ref(orchestrator)
        self._idle: Idle | None = None
        self._is_off = False
        self._work: Work | None = None
        self._begins = asyncio.Lock()
        self._entering = 0
        self._entered = 0
        self._joining: asyncio.Task[None] | None = None
        # The number of entries when the converters were last cleared.
        self._cleared: int | None = None

    @asynccontextmanager
    async def task(self) -> AsyncIterator[None]:
        """Begins work before something enters the queue. A release that is under way stops first."""
        self._entering += 1
        try:
            await self._begin()
            yield
        finally:
            self._entering -= 1
            self._entered += 1
            if self._joining is None and not self._is_off:
                self._joining = asyncio.create_task(self._end())

    async def _begin(self) -> None:
        # Two that enter at once begin one piece of work.
        async with self._begins:
            switch = self._switch()
            if switch is not None and self._work is None:
                self._work = await switch.work().__aenter__()

    async def _end(self) -> None:
        """Ends the work when the queue has been joined and nothing has entered meanwhile."""
        try:
            orchestrator = self._orchestrator()
            entered = None
            while orchestrator is not None and entered != self._entered:
                entered = self._entered
                await orchestrator.task_queue.join()
            # Whoever is entering now waits for the queue when it has entered.
            if self._entering:
                return
        finally:
            self._joining = None
        if self._work is None:
            # There was no device when the first task began: torch had not been imported.
            await self._begin()
        work, self._work = self._work, None
        if work is not None:
            await work.__aexit__(None, None, None)

    def _switch(self) -> Idle | None:
        """Returns free-on-idle, or None if it is off or there is no device yet."""
        orchestrator = self._orchestrator()
        if self._idle is None and not self._is_off and orchestrator is not None:
            try:
                switch = idle(AFTER) if device_of(None) is not None else None
            except ValueError as unreadable:
                logger().warning("docling-serve runs as without lowtide: %s", unreadable)
                self._is_off = True
                return None
            if switch is not None and switch.enabled:
                self._idle = self._adopted.idle = switch
                name = f"docling converters of engine {id(orchestrator):x}"
                weakref.finalize(orchestrator, register_cache(name, self._clear))
                weakref.finalize(orchestrator, switch.close)
            self._is_off = switch is not None and not switch.enabled
        return self._idle

    def _clear(self) -> None:
        """Clears the converters. Runs in the thread of a release, not in the event loop's.

        The engine's own method is a coroutine that waits for nothing, so that it needs no event loop.
        """
        orchestrator = self._orchestrator()
        # One release clears caches more than once, and the engine's method collects garbage each time.
        if orchestrator is None or self._cleared == self._entered:
            return
        clearing = orchestrator.clear_converters()
        try:
            clearing.send(None)
        except StopIteration:
            # A task that runs makes its converter after it has entered.
            self._cleared = None if self._work is not None else self._entered
            return
        clearing.close()
        raise RuntimeError(
            "clear_converters waits for something, so that it was not run to its end"
        )
