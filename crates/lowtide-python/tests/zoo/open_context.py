"""A context that was entered and never left.

A server enters the context of a session by hand and loses the call that would leave it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"opened\[0\]\.gen",
        r"weights",
    ),
    # Up to Python 3.12.3, closing frees no variables: the generator itself has to go.
    cut=r"opened\[0\]\.gen(\.close\(\)| = None)",
    cure="opened.pop().__exit__(None, None, None)",
    holder="opened",
)


@contextlib.contextmanager
def session() -> Iterator[None]:
    weights = big()
    yield
    del weights


def enter() -> Any:
    entered = session()
    entered.__enter__()
    return entered


if __name__ == "__main__":
    opened = [enter()]
    examine(CASE)
