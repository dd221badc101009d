"""A memory pool that is active.

Inside `torch.cuda.use_mem_pool(pool)`, `empty_cache()` returns at once and does nothing: it looks
like success. Whoever trims has to say so.
"""

import contextlib

import torch

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"(?i)cached|MemPool|pool",),
    cut=r"(?i)pool",
    verdict="no-effect|pinned|busy|partial",
    because="while a pool is active, trimming does nothing",
    says=(r"MemPool",),
    then="cure",
    by_hand="a pool that is active ends with its block",
    cure="inside.close(); del inside, pool; torch.cuda.empty_cache()",
    storages=False,
    gpu="only CUDA's allocator has memory pools",
)


if __name__ == "__main__":
    pool = torch.cuda.MemPool()
    inside = contextlib.ExitStack()
    inside.enter_context(torch.cuda.use_mem_pool(pool))
    scores = big()
    del scores
    examine(CASE)
