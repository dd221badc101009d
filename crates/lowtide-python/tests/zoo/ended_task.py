"""A task that has ended.

Its result is a tensor, and the task is still in the set that keeps background tasks from being
collected. There is nothing left to cancel.
"""

import asyncio
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"background",),
    cut=r"background",
    cure="background.clear()",
    holder="background",
)


background: "set[asyncio.Task[Any]]" = set()


async def load() -> Any:
    return big()


async def serve() -> None:
    background.add(asyncio.ensure_future(load()))
    await asyncio.wait(background)


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(serve())
    examine(CASE)
