"""A job that waits in a thread pool.

`pool.submit(lambda: save(weights))` behind a job that takes for ever. The closure waits in the pool's
queue. To empty the closure would only make the job fail later.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"pool",
        r"weights",
    ),
    cut=r"_work_queue|pool",
    cure="\npool.shutdown(wait=False, cancel_futures=True)\nmore.set()\npool.shutdown()\n",
    holder="pool",
)


def save(weights: Any) -> None:
    weights.add_(1)


def enqueue(pool: ThreadPoolExecutor) -> None:
    weights = big()
    pool.submit(lambda: save(weights))


if __name__ == "__main__":
    more, is_busy = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(max_workers=1)
    pool.submit(lambda: (is_busy.set(), more.wait()))
    is_busy.wait()
    enqueue(pool)
    examine(CASE)
