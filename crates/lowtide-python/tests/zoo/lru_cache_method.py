"""`lru_cache` on a method.

The cache belongs to the class, not to the object: its keys hold every `self` it has seen, and its
values every result. Deleting the embedder deletes neither.
"""

import functools
from typing import Any

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"Embedder\.embed", r"lru_cache"),
    cut=r"cache_clear\(\)",
    cure="Embedder.embed.cache_clear()",
    holder="Embedder.embed",
)


class Embedder:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @functools.lru_cache(maxsize=32)  # noqa: B019 (this is the leak)
    def embed(self, text: str) -> Any:
        return big().mul_(self.scale)


if __name__ == "__main__":
    embedder = Embedder(0.5)
    embedder.embed("query")
    del embedder
    examine(CASE)
