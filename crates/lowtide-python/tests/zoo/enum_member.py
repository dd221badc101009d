"""An attribute of an enum's member.

`Weights.SMALL.loaded = load()`: members live as long as their class.
"""

import enum
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"Weights\.SMALL\.loaded",),
    cut=r"Weights\.SMALL",
    cure="del Weights.SMALL.loaded",
    holder="Weights",
)


class Weights(enum.Enum):
    SMALL = 1

    loaded: Any


if __name__ == "__main__":
    Weights.SMALL.loaded = big()
    examine(CASE)
