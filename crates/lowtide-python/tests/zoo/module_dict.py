"""A dict at the top of a module.

A loader remembers what it loaded, so that the next call is quick. The caller deletes its own
reference and does not know of the other one.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"TABLES\['e5'\]",),
    cut=r"TABLES\['e5'\]",
    cure="del TABLES['e5']",
    holder="TABLES",
)

TABLES: dict[str, Any] = {}


def load(name: str) -> Any:
    if name not in TABLES:
        TABLES[name] = big()
    return TABLES[name]


if __name__ == "__main__":
    table = load("e5")
    del table
    examine(CASE)
