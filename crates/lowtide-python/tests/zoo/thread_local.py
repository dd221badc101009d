"""A thread-local of a pool's thread.

Each thread makes its scratch space once and keeps it in a `threading.local`. The work is done; the
pool's threads stay, and from any other thread the attribute does not even exist.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"LOCAL", r"scratch", r"of another thread"),
    cut=r"scratch|(?i:local)",
    cure="pool.submit(forget).result()",
    holder="LOCAL",
)

LOCAL = threading.local()


def work() -> float:
    if not hasattr(LOCAL, "scratch"):
        LOCAL.scratch = big()
    return float(LOCAL.scratch[0])


def forget() -> None:
    del LOCAL.scratch


if __name__ == "__main__":
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")
    pool.submit(work).result()
    examine(CASE)
    pool.shutdown()
