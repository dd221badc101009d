"""An argument of a timer.

`threading.Timer(3600, expire, args=(buffer,))`: the entry of a cache expires in an hour, and the thread
that waits for it has the entry.
"""

import threading
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"\.args\[0\]",),
    cut=r"lowtide\.cut\(1\)",
    cure="timer.cancel(); timer.join(); del timer",
    holder="timer",
)


def expire(buffer: Any) -> None:
    buffer.zero_()


if __name__ == "__main__":
    timer = threading.Timer(3600, expire, args=(big(),))
    timer.daemon = True
    timer.start()
    examine(CASE)
