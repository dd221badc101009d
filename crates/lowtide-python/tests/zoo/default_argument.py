"""A default argument.

`def rank(scores, table=load_table())` loads once, when the line is read, and the function object
keeps it. No variable of that name exists anywhere.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"rank", r"table", r"default"),
    cut=r"rank",
    cure="rank.__defaults__ = None",
    holder="rank",
)


if __name__ == "__main__":

    def rank(score: float, table: Any = big()) -> float:  # noqa: B008 (this is the leak)
        return score * float(table[0])

    rank(0.5)
    examine(CASE)
