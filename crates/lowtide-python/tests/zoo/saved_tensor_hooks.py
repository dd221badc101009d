"""Hooks for saved tensors that are never removed.

`saved_tensors_hooks` is entered by hand, as frameworks that offload activations do, and what removes it
does not run. Autograd has the hooks on a stack of its own, and the closure of one holds a buffer.
"""

from typing import Any

import torch

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"saved_tensors_default_hooks", r"buffer"),
    cut=r"_pop_saved_tensors_default_hooks\(\)",
    cure="torch._C._autograd._pop_saved_tensors_default_hooks()",
    after="torch.ones(1, requires_grad=True).exp().sum().backward() is None",
)


def offload(buffer: Any) -> None:
    def pack(tensor: Any) -> Any:
        return tensor if buffer is not None else None

    torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed).__enter__()


if __name__ == "__main__":
    offload(big())
    examine(CASE)
