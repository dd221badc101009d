"""A compiled model.

`compiled = torch.compile(model)`, then `del model`. The compiled one is a wrapper around it.
"""

import torch

from zoo.keeper import DEVICE, OWN, PINNED, Animal, big, visit

ANIMAL = Animal(
    names=(r"\bcompiled\b",),
    cut=r"\bcompiled\b",
    verdict=PINNED,
    because=OWN,
    then="cut",
    cure="del compiled",
    holder="compiled",
)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(big(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[0]


if __name__ == "__main__":
    model = Model()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(1, device=DEVICE))
    del model
    visit(ANIMAL)
