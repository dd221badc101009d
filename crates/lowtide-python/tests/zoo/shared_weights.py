"""Two runners that share their weights.

One is shut down. Its own cache must go, the weights must not: the other one still answers with
them, and its answers must be the same as before.
"""

from typing import Any

import torch

from zoo.case import DEVICE, PINNED, Case, big, examine

CASE = Case(
    names=(r"first\.kv_cache",),
    cut=r"first",
    release="lowtide.shutdown(first)",
    verdict=PINNED,
    because="the second runner still holds the weights, and is named",
    says=(r"second",),
    frees=True,
    cure="first.kv_cache = first.model = None",
    after="torch.equal(second.answer(question), expected)",
    holder="first",
)


class Runner:
    def __init__(self, model: Any, kv_cache: Any) -> None:
        self.model = model
        self.kv_cache = kv_cache

    def answer(self, question: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.model(question)


if __name__ == "__main__":
    torch.manual_seed(5)
    shared = [torch.nn.Linear(64, 64).to(DEVICE)]
    first = Runner(shared[0], big())
    second = Runner(shared.pop(), None)
    question = torch.ones(64, device=DEVICE)
    expected = second.answer(question)
    examine(CASE)
