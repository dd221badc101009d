"""A future of torch.

`torch.futures.Future` has its result in native code, where the collector does not look.
"""

import torch

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"reply",),
    cut=r"reply",
    cure="del reply",
    holder="reply",
)


if __name__ == "__main__":
    reply: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    reply.set_result(big())
    examine(CASE)
