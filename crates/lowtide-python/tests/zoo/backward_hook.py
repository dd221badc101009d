"""A hook on a parameter's gradient.

A penalty for moving weights that matter (as in elastic weight consolidation) is put into a gradient
hook. The hook's closure keeps the large table of importances; the parameter keeps the hook, in a
slot of the tensor, not in an attribute.
"""

from typing import Any

import torch

from zoo.case import DEVICE, big, examine, pinned

CASE = pinned(
    names=(r"weight", r"hook", r"importance"),
    cut=r"weight|hook|importance",
    cure="handle.remove()",
    holder="weight",
)


def consolidate(weight: Any) -> Any:
    importance = big()
    return weight.register_hook(lambda grad: grad * importance[: grad.shape[0]])


if __name__ == "__main__":
    weight: Any = torch.ones(8, device=DEVICE, requires_grad=True)
    handle = consolidate(weight)
    weight.sum().backward()
    examine(CASE)
