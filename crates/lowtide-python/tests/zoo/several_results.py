"""A cache with several results.

`lru_cache` on a function that loads a model: each result is a part of what the cache holds, so that the
cache itself is the holder. It is cleared; the function stays.
"""

import functools
from typing import Any

from zoo.case import LEAK_MIB, Case, big, examine

CASE = Case(
    names=(r"load",),
    cut=r"load\.cache_clear\(\)",
    cure="load.cache_clear()",
    holder="load",
    after="callable(load)",
)


@functools.lru_cache
def load(name: str) -> Any:
    return {"name": name, "weights": big(LEAK_MIB // 2)}


if __name__ == "__main__":
    load("first")
    load("second")
    examine(CASE)
