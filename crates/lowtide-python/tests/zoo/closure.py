"""A closure.

A route is registered as a nested function. It needs a part of what its maker loaded, and keeps the
whole variable for as long as the route exists.
"""

from collections.abc import Callable

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"handle", r"closure", r"weights"),
    cut=r"handle",
    cure="del handle",
    holder="handle",
)


def make_handler() -> Callable[[float], float]:
    weights = big()

    def handle(score: float) -> float:
        return float(weights[0]) * score

    return handle


if __name__ == "__main__":
    handle = make_handler()
    handle(0.5)
    examine(CASE)
