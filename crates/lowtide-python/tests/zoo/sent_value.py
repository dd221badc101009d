"""A value that was sent into a generator.

A consumer collects what it is sent, and waits for the next. The last value is in two places: in the
variable that it was sent to, and in the list.
"""

from collections.abc import Generator
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"worker\(\) line \d+|worker", r"batch|seen"),
    cut=r"consumer",
    cure="del consumer",
    holder="consumer",
)


def worker() -> Generator[int, Any, None]:
    seen: list[Any] = []
    while True:
        batch = yield len(seen)
        seen.append(batch)


if __name__ == "__main__":
    consumer = worker()
    next(consumer)
    consumer.send(big())
    examine(CASE)
