"""A method of one instance that was replaced.

Libraries that move weights in and out put a function of their own over `model.forward`. It is deleted:
then the class's method is there again.
"""

from typing import Any

import torch

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"model\.forward",),
    cut=r"del .*model\.forward",
    cure="del model.forward",
    holder="model",
    after="model(torch.ones(1, 2)) is not None",
)


model = torch.nn.Linear(2, 2)


def add_hook(weights: Any) -> None:
    forward = model.forward

    def hooked(batch: torch.Tensor) -> torch.Tensor:
        return forward(batch) if weights is not None else batch

    model.forward = hooked  # type: ignore[method-assign]


if __name__ == "__main__":
    add_hook(big())
    examine(CASE)
