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


async def in_thread(call: Callable[[], T]) -> T:
    """Calls a function in a thread and waits for it without stopping the event loop.

    The call is part of the same release as its caller, if it is part of one. If the waiting is
    cancelled, the call goes on.
    """
    import asyncio
    import contextvars

    run = contextvars.copy_context().run
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, run, call))
