"""A stack of clean-up calls.

`stack.callback(give_back, buffer)`: the stack is closed when the server ends.
"""

import contextlib
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"stack\._exit_callbacks",),
    cut=r"stack",
    cure="stack.pop_all()",
    holder="stack",
)


def give_back(buffer: Any) -> None:
    buffer.zero_()


if __name__ == "__main__":
    stack = contextlib.ExitStack()
    stack.callback(give_back, big())
    examine(CASE)
