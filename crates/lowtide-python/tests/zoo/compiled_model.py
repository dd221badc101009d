"""A compiled model.

`compiled = torch.compile(model)`, then `del model`. The compiled one is a wrapper around it.
"""

import torch

from zoo.case import DEVICE, big, examine, pinned

LARGE_MIB = 128
"""Large beside what the compiler takes meanwhile."""

CASE = pinned(
    names=(r"\bcompiled\b",),
    cut=r"\bcompiled\b",
    cure="del compiled",
    holder="compiled",
    mib=LARGE_MIB,
)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(big(LARGE_MIB), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[0]


if __name__ == "__main__":
    model = Model()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(1, device=DEVICE))
    del model
    examine(CASE)
