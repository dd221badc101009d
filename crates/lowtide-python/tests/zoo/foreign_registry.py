"""A registry of another package.

One line, long ago, told a monitoring package to watch the model. The program has dropped all that
it knows of; the package has not.
"""

import torch

from zoo.case import big, examine, pinned
from zoo.packages import monitor

CASE = pinned(
    names=(r"monitor\._watched\['reranker'\]",),
    cut=r"monitor\._watched",
    cure="monitor.forget_model('reranker')",
    holder="monitor._watched",
)


class Reranker(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(big(), requires_grad=False)


if __name__ == "__main__":
    reranker = Reranker()
    monitor.watch_model("reranker", reranker)
    del reranker
    examine(CASE)
