"""An item in a queue that nobody reads any more.

The consumer ended with an error; the producer had put one more batch into the queue before it knew.
"""

import queue
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"inbox\.queue",),
    cut=r"inbox",
    cure="inbox.get_nowait()",
    holder="inbox",
)

inbox: "queue.Queue[Any]" = queue.Queue(maxsize=4)


if __name__ == "__main__":
    inbox.put(("score", big()))
    examine(CASE)
