"""A task that failed.

The exception of an asyncio task stays in the task until somebody asks for it, with its traceback and
the variables of every frame. The server keeps its tasks in a list.
"""

import asyncio

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"tasks",
        r"batch",
    ),
    cut=r"tasks",
    cure="tasks.clear()",
    holder="tasks",
)


tasks: list[asyncio.Task[None]] = []


async def embed() -> None:
    batch = big()
    raise RuntimeError(f"no adapter for {batch.shape}")


async def serve() -> None:
    tasks.append(asyncio.ensure_future(embed()))
    await asyncio.wait(tasks)


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(serve())
    examine(CASE)
