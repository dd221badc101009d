"""An autograd graph.

`losses.append(loss)` to draw a curve later. Each loss is one number, and holds the graph that made
it, with every activation that was saved for the backward pass. Python sees none of these tensors.
"""

from typing import Any

import torch

from zoo.keeper import DEVICE, OWN, PINNED, Animal, big, visit, watch

ANIMAL = Animal(
    names=(r"losses\[0\]", r"autograd|grad_fn"),
    cut=r"losses",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="losses[0] = losses[0].detach()",
    holder="losses",
    alone="its graph holds two storages, which an answer may tell one by one",
)


def step(scale: Any) -> Any:
    hidden = watch(big() * scale)
    return hidden.square().mean()


if __name__ == "__main__":
    scale = torch.ones(1, device=DEVICE, requires_grad=True)
    losses = [step(scale)]
    visit(ANIMAL)
