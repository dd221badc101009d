"""A DataLoader's pinned batches.

With workers and `pin_memory=True` the loader prefetches: batches that nobody asked for yet wait, in
pinned host memory, in a queue of its iterator, until the iterator goes. Pinned memory is not the
device's, but it is the scarcest that the host has.
"""

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from zoo.case import MIB, OWN, Case, examine, watch

CASE = Case(
    names=(r"batches\._data_queue",),
    cut=r"batches",
    release="lowtide.release(device='cpu')",
    verdict="pinned|released",  # the kernel's number moves while its thread is at work
    frees=False,
    because=OWN,
    then="cure",
    cure="del batches",
    holder="batches",
    memory=False,  # torch keeps pinned pages for its next batch
    asked="cpu",
    gpu="only a GPU's driver pins host memory",
)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        return torch.full((8 * MIB,), float(number))


if __name__ == "__main__":
    batches: Any = iter(DataLoader(Rows(), batch_size=1, num_workers=1, pin_memory=True))
    next(batches)
    while batches._data_queue.empty():  # the next one is on its way
        time.sleep(0.01)
    watch(batches._data_queue.queue[0][1])
    examine(CASE)
