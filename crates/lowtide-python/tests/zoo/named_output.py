"""An output that is a named tuple.

Every step's output is appended to a history. A field of a named tuple cannot be assigned to: the
history has to let go of the whole output.
"""

from typing import Any, NamedTuple

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"history\[0\]\.hidden",),
    cut=r"history",
    cure="history.clear()",
    holder="history",
)


class Output(NamedTuple):
    loss: float
    hidden: Any


history: list[Output] = []


if __name__ == "__main__":
    history.append(Output(0.5, big()))
    examine(CASE)
