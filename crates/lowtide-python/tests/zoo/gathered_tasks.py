"""A task that others wait for.

A server gathers the tasks of a request and stops before they have ended. A task that is cancelled gives
its exception, with the frames, to the future that waits for it.
"""

import asyncio
from typing import Any

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"answer\(\)",),
    cut=r"cancels the task",
    verdict=PINNED,
    because=OWN,
    then="cure",
    cure="together.cancel(); loop.run_until_complete(asyncio.sleep(0)); together = None",
    holder="answer.__code__",
)


async def answer(batch: Any) -> None:
    await asyncio.sleep(1000)


async def request() -> Any:
    together = asyncio.gather(answer(big()), answer(None))
    await asyncio.sleep(0)
    return together


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    together = loop.run_until_complete(request())
    examine(CASE)
