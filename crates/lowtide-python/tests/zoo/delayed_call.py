"""A call that an event loop makes later.

`loop.call_later(3600, evict)`: the cache entry goes in an hour, and until then the callback holds it.
"""

import asyncio

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"_scheduled",),
    cut=r"cancel\\(\\)|_scheduled",
    cure="eviction.cancel(); del eviction; loop.close(); del loop",
    holder="loop",
)


def schedule(loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle:
    entry = big()
    return loop.call_later(3600, lambda: entry.zero_())


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    eviction = schedule(loop)
    examine(CASE)
