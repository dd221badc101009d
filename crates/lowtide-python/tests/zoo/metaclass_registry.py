"""A metaclass that makes single instances.

The one instance of each class is in a dict of the metaclass.
"""

from typing import Any, ClassVar

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"Single\.instances",),
    cut=r"Single\.instances|kv",
    cure="Single.instances.clear()",
    holder="Single",
)


class Single(type):
    instances: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *arguments: Any) -> Any:
        if cls not in Single.instances:
            Single.instances[cls] = super().__call__(*arguments)
        return Single.instances[cls]


class Engine(metaclass=Single):
    def __init__(self) -> None:
        self.kv = big()


if __name__ == "__main__":
    Engine()
    examine(CASE)
