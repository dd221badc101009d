"""A forward hook.

Somebody looked at activations once. The hook is still registered, and its closure still keeps what
the last pass gave it.
"""

from collections.abc import Callable
from typing import Any

import torch

from zoo.case import DEVICE, MIB, examine, pinned, watch

CASE = pinned(
    names=(r"model", r"hook", r"seen"),
    cut=r"model|hook|seen",
    cure="handle.remove()",
    holder="model[0]",
)


def remember() -> Callable[[Any, Any, Any], None]:
    seen: dict[str, Any] = {}

    def hook(module: Any, inputs: Any, output: Any) -> None:
        seen["last"] = watch(output)

    return hook


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU()).to(DEVICE)
    handle = model[0].register_forward_hook(remember())
    with torch.no_grad():
        model(torch.ones(MIB, 1, device=DEVICE))
    examine(CASE)
