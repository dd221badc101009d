"""A frame of another thread.

A worker waits for its next request. The last batch is still in a local variable of its loop, since
nothing overwrote it: it goes when the next request comes, which may be tomorrow.
"""

import threading

from zoo.case import PINNED, Case, big, examine

CASE = Case(
    names=(r"worker", r"serve\(\) line \d+", r"\bbatch\b"),
    cut=r"serve\(\)|worker",
    verdict=PINNED,
    because="a local of a function that is running: only that function can let go of it",
    then="cure",
    by_hand="a local of a function that is running: no other code reaches it",
    cure="more.set(); worker.join()",
    holder="serve.__code__",
)

is_served = threading.Event()
more = threading.Event()


def serve() -> None:
    batch = big()
    batch.mul_(2)
    is_served.set()
    more.wait()


if __name__ == "__main__":
    worker = threading.Thread(target=serve, name="worker", daemon=True)
    worker.start()
    is_served.wait()
    examine(CASE)
