"""An autograd graph.

`losses.append(loss)` to draw a curve later. Each loss is one number, and holds the graph that made
it, with every activation that was saved for the backward pass. Python sees none of these tensors.
"""

from typing import Any

import torch

from zoo.case import DEVICE, big, examine, pinned, watch

CASE = pinned(
    names=(r"losses\[0\]", r"autograd|grad_fn"),
    cut=r"losses",
    cure="losses[0] = losses[0].detach()",
    holder="losses",
)


def step(scale: Any) -> Any:
    hidden = watch(big() * scale)
    return hidden.square().mean()


if __name__ == "__main__":
    scale = torch.ones(1, device=DEVICE, requires_grad=True)
    losses = [step(scale)]
    examine(CASE)
