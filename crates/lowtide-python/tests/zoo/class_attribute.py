"""A class attribute.

"Load it once for all instances." All instances are gone, and the class is still there, with it.
"""

from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"Tokenizer\.table",),
    cut=r"Tokenizer\.table",
    cure="Tokenizer.table = None",
    holder="Tokenizer",
)


class Tokenizer:
    table: Any = None

    def __init__(self) -> None:
        if Tokenizer.table is None:
            Tokenizer.table = big()


if __name__ == "__main__":
    tokenizer = Tokenizer()
    del tokenizer
    examine(CASE)
