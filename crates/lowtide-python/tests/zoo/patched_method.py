"""A method that was wrapped from outside.

A library replaces a method of another library's class by a function that calls the old one. The class
gets its own method back; emptying the closure would make every call fail.
"""

from typing import Any

import torch

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"Linear\.forward",),
    cut=r"Linear\.forward = ",
    cure="torch.nn.Linear.forward = torch.nn.Linear.forward.__closure__[1].cell_contents",
    holder="torch.nn.Linear.forward",
    after="torch.nn.Linear(2, 2)(torch.ones(1, 2)) is not None",
)


def patch(bias: Any) -> None:
    forward = torch.nn.Linear.forward

    def patched(self: torch.nn.Linear, batch: torch.Tensor) -> torch.Tensor:
        return forward(self, batch) if bias is not None else batch

    torch.nn.Linear.forward = patched  # type: ignore[method-assign]


if __name__ == "__main__":
    patch(big())
    examine(CASE)
