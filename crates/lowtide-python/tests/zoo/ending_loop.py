"""A task of an event loop that ends with it.

A server runs in a thread with `asyncio.run`. Its only task waits for ever in a group; once the task is
cancelled, the group ends, and with it the server, the loop and the thread.
"""

import asyncio
import threading
import time
from typing import Any

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"work\(\) line \d+", r"\bbatch\b"),
    cut=r"cancel",
    verdict=PINNED,
    because="a task that waits: to end it is its owner's business",
    then="cut",
    cure="""
# In one call: the loop may end with the first of them.
loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
thread.join()
""",
    holder="work.__code__",
    python=(3, 11),
)


async def work(batch: Any) -> None:
    waits.set()
    await asyncio.sleep(3600)
    batch.add_(1)


async def serve() -> None:
    global loop
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
        group.create_task(work(big()))


def run() -> None:
    try:
        asyncio.run(serve())
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    waits = threading.Event()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    waits.wait()
    time.sleep(0.1)  # The loop waits.
    examine(CASE)
