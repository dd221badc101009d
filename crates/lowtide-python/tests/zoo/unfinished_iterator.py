"""A loop over a list that was left.

`steps = enumerate(batches)` at the prompt: the iterator has the whole list, whatever it has passed.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"steps",),
    cut=r"steps",
    cure="del steps",
    holder="steps",
)


def load() -> list[Any]:
    return [big(), None]


if __name__ == "__main__":
    steps = enumerate(load())
    next(steps)
    examine(CASE)
