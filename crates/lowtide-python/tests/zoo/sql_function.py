"""A function that was given to SQLite.

`connection.create_function("score", 1, score)`: SQLite keeps the closure and shows it to nobody.
"""

import sqlite3
from typing import Any

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"score\(\)|<lambda>\(\)",),
    cut=r"unregister",
    verdict=PINNED,
    because=OWN,
    then="cure",
    by_hand="SQLite does not show the functions that it was given",
    cure="connection.close(); del connection",
)


def register(connection: sqlite3.Connection, index: Any) -> None:
    connection.create_function("score", 1, lambda row: float(index[row]))


if __name__ == "__main__":
    connection = sqlite3.connect(":memory:")
    register(connection, big())
    examine(CASE)
