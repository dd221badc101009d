"""`functools.partial`.

A pool of workers, a scheduler or a button is given `partial(score, table)`. The arguments live as
long as the partial does.
"""

import functools
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"on_request", r"partial|args"),
    cut=r"on_request",
    cure="del on_request",
    holder="on_request",
)


def score(table: Any, row: int) -> float:
    return float(table[row])


if __name__ == "__main__":
    on_request = functools.partial(score, big())
    on_request(0)
    examine(CASE)
