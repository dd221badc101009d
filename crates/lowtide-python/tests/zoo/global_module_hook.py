"""A hook on every module.

`register_module_forward_hook` is for profilers; the handle that would remove it is lost.
"""

from typing import Any

import torch

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"_global_forward_hooks",),
    cut=r"_global_forward_hooks",
    cure="torch.nn.modules.module._global_forward_hooks.clear()",
    holder="torch.nn.modules.module._global_forward_hooks",
)


def profile(seen: Any) -> None:
    torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: seen.shape and None
    )


if __name__ == "__main__":
    profile(big())
    examine(CASE)
