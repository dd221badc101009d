"""An argument of `weakref.finalize`.

"When the session goes, give its buffer back to the pool." The finaliser holds the buffer until
then, in a registry of the weakref module, and the session is a long one.
"""

import weakref
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"finalize",),
    cut=r"finalize|detach",
    cure="goodbye.detach()",
    holder="weakref.finalize._registry[goodbye]",
)

pool: list[int] = []


class Session:
    """A client's connection."""


def give_back(buffer: Any) -> None:
    pool.append(buffer.shape[0])


if __name__ == "__main__":
    session = Session()
    goodbye = weakref.finalize(session, give_back, big())
    goodbye.atexit = False
    examine(CASE)
