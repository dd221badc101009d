"""The handle of a collective.

`all_reduce(..., async_op=True)` returns a handle, and native code keeps the tensors for as long as it
lives. A trainer that overlaps communication appends handles to a list and waits for them, but does not
empty the list.
"""

from typing import Any

import torch
import torch.distributed

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"handles",),
    cut=r"handles",
    cure="handles.clear()",
    holder="handles",
    cpu="the backend `gloo` works on host memory",
)


handles: list[Any] = []


def reduce(gradient: Any) -> None:
    handles.append(torch.distributed.all_reduce(gradient, async_op=True))
    handles[-1].wait()


if __name__ == "__main__":
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    reduce(big())
    examine(CASE)
