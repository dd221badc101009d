"""A compiled function that is gone, and its compiled code that is not.

A back end makes an engine, with a workspace of its own, as those for inference do. The compiler
puts it into the globals of the function's module, under a name that it makes up. Deleting the
function does not take it out again; `torch._dynamo.reset()` does.
"""

from collections.abc import Callable
from typing import Any

import torch

from zoo.case import DEVICE, Case, big, examine

LARGE_MIB = 128
"""Large beside what the compiler takes meanwhile."""

CASE = Case(
    names=(r"__compiled_fn_|(?i:compile)",),
    cut=r"(?i)dynamo|compile|release\(\)",
    cure="torch._dynamo.reset()",
    holder="next(value for name, value in globals().items() if name.startswith('__compiled_fn'))",
    mib=LARGE_MIB,
)


def engine(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
    workspace = big(LARGE_MIB)

    def run(*values: Any) -> Any:
        workspace.zero_()
        return graph(*values)

    return run


if __name__ == "__main__":

    @torch.compile(backend=engine)
    def normalise(x: Any) -> Any:
        return x / x.norm()

    normalise(torch.ones(8, device=DEVICE))
    del normalise
    examine(CASE)
