"""An asyncio task.

A background task was started and forgotten. It waits for an event that never comes, so it never
ends, and its locals stay with it. No variable refers to the task: only what it waits for does.
"""

import asyncio

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"task", r"poll\(\) line \d+", r"\bbatch\b"),
    cut=r"cancel\(\)|poll|task",
    verdict=PINNED,
    because="a task that waits: to end it is its owner's business, and takes a turn of its loop",
    then="cure",
    cure="""
waiting = asyncio.all_tasks(loop)
for task in waiting:
    task.cancel()
loop.run_until_complete(asyncio.wait(waiting))
del waiting, task
""",
    holder="poll.__code__",
)


async def poll(changed: asyncio.Event) -> None:
    batch = big()
    await changed.wait()
    batch.add_(1)


async def start(changed: asyncio.Event) -> None:
    asyncio.ensure_future(poll(changed)).set_name("poller")
    await asyncio.sleep(0)


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    weights_changed = asyncio.Event()
    loop.run_until_complete(start(weights_changed))
    examine(CASE)
