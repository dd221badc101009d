"""Tasks that only running code has.

`asyncio.wait` waits for them in a thread. No module leads there: only the frames of that thread do, which
no expression reaches. Every task can be found by its name.
"""

import asyncio
import threading
import time
from typing import Any

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"task 'Task-\d+'", r"\bbatch\b"),
    cut=r"cancel",
    verdict=PINNED,
    because="a task that waits: to end it is its owner's business",
    then="cut",
    cure="""
import gc
for task in [one for one in gc.get_objects() if type(one) is asyncio.Task]:
    if not task.done():
        task.get_loop().call_soon_threadsafe(task.cancel)
del task
thread.join()
""",
    holder="work.__code__",
)


async def work(turn: asyncio.Semaphore, batch: Any) -> None:
    waits.set()
    await turn.acquire()
    batch.add_(1)


async def main() -> None:
    tasks = [asyncio.ensure_future(work(asyncio.Semaphore(0), big()))]
    await asyncio.wait(tasks)


if __name__ == "__main__":
    waits = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    waits.wait()
    time.sleep(0.1)  # The loop waits.
    examine(CASE)
