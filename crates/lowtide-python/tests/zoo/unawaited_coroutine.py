"""A coroutine that nobody awaits.

`handle(batch)` without `await`, in a list of things to do: its arguments are there already.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"pending\[0\]",
        r"batch",
    ),
    cut=r"pending\[0\]",
    cure="pending.pop().close()",
    holder="pending",
)


async def handle(batch: Any) -> Any:
    return batch


if __name__ == "__main__":
    pending = [handle(big())]
    examine(CASE)
