"""An optimizer that outlives its model.

The model is deleted. Its optimizer still lists the parameters, with their gradients, and has two
tensors of the same size for each: four times the model.
"""

from typing import Any

import torch

from zoo.case import Case, big, examine, watch

CASE = Case(
    names=(r"optimizer\b",),
    cut=r"optimizer",
    release="lowtide.release(optimizer)",
    cure="del optimizer",
    holder="optimizer",
)


if __name__ == "__main__":
    weight: Any = torch.nn.Parameter(big(32))
    optimizer = torch.optim.AdamW([weight])
    weight.square().sum().backward()
    optimizer.step()
    watch(weight.grad)
    watch(optimizer.state[weight]["exp_avg"])
    del weight
    examine(CASE)
