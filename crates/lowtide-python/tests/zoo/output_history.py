"""The outputs that an interactive shell keeps.

A shell stores every result under its number and under `_`. Deleting the variable frees nothing.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"Out\[3\]",),
    cut=r"Out",
    cure="del Out[3], _, _3",
    holder="Out",
)


Out: dict[int, Any] = {}


if __name__ == "__main__":
    Out[3] = _3 = _ = big()
    examine(CASE)
