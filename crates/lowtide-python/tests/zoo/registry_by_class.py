"""A registry with classes as keys.

A plug-in registers its weights under its class. No literal stands for the key.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"weights_of",),
    cut=r"weights_of",
    cure="weights_of.clear()",
    holder="weights_of",
)


class Adapter:
    """A plug-in."""


weights_of: dict[type, Any] = {}


if __name__ == "__main__":
    weights_of[Adapter] = big()
    examine(CASE)
