"""A static method with a mutable default.

`def load(name, cache={})`: the dict is the function's, and lives as long as the class.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"load",
        r"base",
    ),
    cut=r"load|base",
    cure="Loader.load.__defaults__[0].clear()",
    holder="Loader.load",
)


class Loader:
    @staticmethod
    def load(name: str, cache: dict[str, Any] = {}) -> Any:  # noqa: B006
        if name not in cache:
            cache[name] = big()
        return cache[name]


if __name__ == "__main__":
    Loader.load("base")
    examine(CASE)
