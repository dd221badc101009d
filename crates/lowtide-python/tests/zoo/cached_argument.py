"""An argument of a cached function.

`lru_cache` keeps the arguments of every call: a tensor that was hashed by its identity is never looked up
again, and stays until 128 others came.
"""

import functools
from typing import Any

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"norm \(functools\.lru_cache\)",),
    cut=r"norm\.cache_clear\(\)",
    cure="norm.cache_clear()",
    holder="norm",
)


@functools.lru_cache
def norm(values: Any) -> float:
    return float(values.sum())


if __name__ == "__main__":
    norm(big())
    examine(CASE)
