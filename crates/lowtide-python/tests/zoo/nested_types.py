"""A type that two caches of `typing` hold.

`Union[int, Annotated[str, default]]`: the cache of `Annotated` holds the default as an argument and in
its result, and that result is an argument of the cache of `Union`. To clear one of them frees nothing.
"""

import typing
from typing import Any

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"typing\..*functools\.lru_cache",),
    cut=r"cache_clear\(\)",  # Up to Python 3.13 two of them.
    cure="[clear() for clear in typing._cleanups]",
)


def field(default: Any) -> None:
    typing.Union[int, typing.Annotated[str, default]]  # noqa: UP007


if __name__ == "__main__":
    field(big())
    examine(CASE)
