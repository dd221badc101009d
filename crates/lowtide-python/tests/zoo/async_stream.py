"""A streaming response that nobody reads to its end.

The client went away. The asynchronous generator waits at its `yield` with the batch in a variable,
and the server's table of streams still has it.
"""

import asyncio
from collections.abc import AsyncIterator

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"streams",
        r"batch",
    ),
    cut=r"streams",
    cure="loop.run_until_complete(streams.pop(7).aclose())",
    holder="streams",
)


streams: dict[int, AsyncIterator[float]] = {}


async def tokens() -> AsyncIterator[float]:
    batch = big()
    while True:
        yield float(batch[0])


async def serve() -> None:
    streams[7] = tokens()
    await streams[7].__anext__()


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(serve())
    examine(CASE)
