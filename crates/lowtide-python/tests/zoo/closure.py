"""A closure.

A route is registered as a nested function. It needs a part of what its maker loaded, and keeps the
whole variable for as long as the route exists.
"""

from collections.abc import Callable

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"handle", r"closure", r"weights"),
    cut=r"handle",
    verdict=PINNED,
    because=OWN,
    then="cut",
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
