"""An iterator that was split.

`itertools.tee`: what one half has read and the other has not waits between them.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"train|valid",),
    cut=r"del .*(train|valid)",
    cure="next(valid); train = valid = None",
    holder="valid",
)


def batches() -> Iterator[Any]:
    yield big()
    yield None


if __name__ == "__main__":
    train, valid = itertools.tee(batches())
    next(train)
    examine(CASE)
