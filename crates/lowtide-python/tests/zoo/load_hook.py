"""A hook that runs when a model's weights are loaded.

torch wraps such a hook in an object of its own. It is removed as a whole: without its function,
`load_state_dict` fails.
"""

from typing import Any

import torch

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"model\._load_state_dict_pre_hooks",),
    cut=r"del .*model\._load_state_dict_pre_hooks",
    cure="model._load_state_dict_pre_hooks.clear()",
    holder="model",
    after="model.load_state_dict(model.state_dict()) is not None",
)


model = torch.nn.Linear(2, 2)


def register(weights: Any) -> None:
    def rename(*_: Any) -> None:
        if weights is None:
            raise LookupError

    model.register_load_state_dict_pre_hook(rename)


if __name__ == "__main__":
    register(big())
    examine(CASE)
