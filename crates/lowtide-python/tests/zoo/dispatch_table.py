"""A function that depends on the type of its argument.

`@encode.register(int)` inside another function: the table of `singledispatch` has the closure.
"""

import functools
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"encode",),
    cut=r"encode",
    cure="del encode",
    holder="encode",
)


@functools.singledispatch
def encode(value: Any) -> Any:
    return value


def add(table: Any) -> None:
    @encode.register(int)
    def _(value: int) -> Any:
        return table[value]


if __name__ == "__main__":
    add(big())
    examine(CASE)
