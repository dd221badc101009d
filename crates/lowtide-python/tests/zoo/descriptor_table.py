"""A descriptor that keeps the values of all instances.

A settings library keeps values in the descriptor itself, by instance. `runner.buffer` gives the value,
and never the descriptor that holds it.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"values",),
    cut=r"values",
    cure="vars(Runner)['buffer'].values.clear()",
    holder="vars(Runner)['buffer']",
)


class Setting:
    def __init__(self) -> None:
        self.values: dict[int, Any] = {}

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self.values[id(owner)]

    def __set__(self, owner: object, value: object) -> None:
        self.values[id(owner)] = value


class Runner:
    buffer = Setting()


if __name__ == "__main__":
    runner = Runner()
    runner.buffer = big()
    examine(CASE)
