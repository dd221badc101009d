"""A DataLoader's iterator.

`next(iter(loader))` to look at one batch, and the iterator stays in a variable. The dataset streams
from shards: its generator is in the middle of one, and that one is still whole in memory.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"batches", r"__iter__\(\) line \d+", r"\bshard\b"),
    cut=r"batches|__iter__",
    cure="del batches",
    holder="batches",
)


class Shards(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        shard = big()
        for row in range(shard.shape[0]):
            yield shard[row].clone()


if __name__ == "__main__":
    batches = iter(DataLoader(Shards(), batch_size=4))
    next(batches)
    examine(CASE)
