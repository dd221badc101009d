"""A future of torch.

`torch.futures.Future` has its result in native code, where the collector does not look.
"""

import torch

from zoo.keeper import OWN, PINNED, Animal, big, visit

ANIMAL = Animal(
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
    visit(ANIMAL)
