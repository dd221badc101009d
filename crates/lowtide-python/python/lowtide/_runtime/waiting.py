"""Calls that wait, from a coroutine: a thread does them, and the event loop goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def is_in_event_loop() -> bool:
    """Returns whether an event loop of asyncio runs in this thread: waiting would stop it."""
    asyncio: Any = sys.modules.get("asyncio.events")
    return asyncio is not None and asyncio._get_running_loop() is not None


async def in_thread(call: Callable[[], T], or_else: Callable[[T], object] | None = None) -> T:
    """Calls a function in a thread and waits for it without stopping the event loop.

    The call is part of the same release as its caller, if it is part of one. If the waiting is
    cancelled, the call goes on, and `or_else` gets its result.
    """
    import asyncio
    import contextvars

    loop = asyncio.get_running_loop()
    called = loop.run_in_executor(None, contextvars.copy_context().run, call)
    try:
        return await asyncio.shield(called)
    except asyncio.CancelledError:

        def take(ended: asyncio.Future[T]) -> None:
            if or_else is not None and not ended.cancelled() and ended.exception() is None:
                or_else(ended.result())

        called.add_done_callback(take)
        raise
