"""The allocator's cache.

The tensor is deleted, and `nvidia-smi` shows no change. The framework keeps freed memory for the
next tensor; only other processes, and other frameworks in this one, go without.
"""

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"(?i)cache",),
    cut=r"(?i)release\(\)|trim|empty",
    cure="import torch; torch.cuda.empty_cache()",
    storages=False,
    gpu="only a device's allocator keeps a cache",
)


if __name__ == "__main__":
    scores = big()
    del scores
    examine(CASE)
