"""A future of torch.

`torch.futures.Future` has its result in native code, where the collector does not look.
"""

import torch

from zoo.case import OWN, PINNED, Case, big, examine

CASE = Case(
    names=(r"reply",),
    cut=r"reply",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="del reply",
    holder="reply",
)


if __name__ == "__main__":
    reply: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    reply.set_result(big())
    examine(CASE)
