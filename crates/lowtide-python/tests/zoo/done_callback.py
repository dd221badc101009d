"""A callback of a future that is never done.

`future.add_done_callback(partial(reply, batch))`: the worker that would set the result has died.
"""

import concurrent.futures
import functools
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"future\._done_callbacks",),
    cut=r"_done_callbacks\[0\]",
    cure="future._done_callbacks.clear()",
    holder="future",
)


def reply(batch: Any, future: Any) -> None:
    batch.zero_()


if __name__ == "__main__":
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.add_done_callback(functools.partial(reply, big()))
    examine(CASE)
