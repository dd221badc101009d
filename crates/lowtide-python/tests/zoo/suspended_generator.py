"""A suspended generator.

The reader of a stream stops early (`break`, `next()`, an error in the loop). The generator waits at
its `yield` for ever, with its locals, as long as somebody has the generator.
"""

from collections.abc import Iterator

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"stream\(\) line \d+", r"\bbatch\b", r"rows"),
    cut=r"rows|stream",
    cure="del rows",
    holder="rows",
)


def stream() -> Iterator[float]:
    batch = big()
    for row in range(batch.shape[0]):
        yield float(batch[row])


if __name__ == "__main__":
    rows = stream()
    next(rows)
    examine(CASE)
