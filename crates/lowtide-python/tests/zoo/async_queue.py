"""A request in the queue of an event loop.

The consumer of an `asyncio.Queue` was cancelled: what was put stays.
"""

import asyncio
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"requests\._queue",),
    cut=r"requests\._queue\[0\]",
    cure="requests.get_nowait()",
    holder="requests",
)


if __name__ == "__main__":
    requests: asyncio.Queue[Any] = asyncio.Queue()
    requests.put_nowait(("id", big()))
    examine(CASE)
