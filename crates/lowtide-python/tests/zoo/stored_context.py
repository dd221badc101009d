"""A context that was copied.

`contextvars.copy_context()` for a callback that may come later has the request's variables.
"""

import contextvars
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"kept\[0\]",
        r"request",
    ),
    cut=r"kept\[0\]",
    cure="kept.clear()",
    holder="kept",
)


request: contextvars.ContextVar[Any] = contextvars.ContextVar("request")


def handle() -> contextvars.Context:
    request.set({"image": big()})
    return contextvars.copy_context()


if __name__ == "__main__":
    kept = [contextvars.copy_context().run(handle)]
    examine(CASE)
