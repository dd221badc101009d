"""An output that is a named tuple.

Every step's output is appended to a history. A field of a named tuple cannot be assigned to: the
history has to let go of the whole output.
"""

from typing import Any, NamedTuple

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"history\[0\]\.hidden",),
    cut=r"history",
    verdict=PINNED,
    because=OWN,
    then="cut",
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
