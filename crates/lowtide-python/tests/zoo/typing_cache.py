"""A cache of `typing`.

`Annotated[str, default]` in a type that is built for each request, as frameworks for web APIs do: the
caches of `typing` keep the arguments, and the result of one is an argument of the other.
"""

import typing
from typing import Any

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"typing\..*functools\.lru_cache",),
    cut=r"cache_clear\(\)",
    cure="[clear() for clear in typing._cleanups]",
)


def field(default: Any) -> None:
    typing.Optional[typing.Annotated[str, default]]  # noqa: UP045


if __name__ == "__main__":
    field(big())
    examine(CASE)
