"""A hook on a node of autograd.

A tool that measures gradients registers a hook on `grad_fn` of an activation. The node keeps the hook
in native code. The activation is gone, and only the loss that was kept for a plot leads to the node.
"""

from typing import Any

import torch

from zoo.case import DEVICE, big, examine, pinned

CASE = pinned(
    names=(r"loss", r"hooks of ExpBackward0", r"reference"),
    cut=r"loss \(hooks",
    cure="handle.remove()",
    holder="loss",
)


def measure(activation: Any) -> Any:
    reference = big()
    return activation.grad_fn.register_hook(lambda inputs, outputs: print(reference[0]))


if __name__ == "__main__":
    activation: Any = torch.ones(8, device=DEVICE, requires_grad=True).exp()
    handle = measure(activation)
    loss = activation.sum()
    del activation
    examine(CASE)
