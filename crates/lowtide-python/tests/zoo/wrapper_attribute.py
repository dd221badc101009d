"""An attribute of a wrapper.

An engine's `shutdown()` sets `self.model = None`, and that looks right. A runner that was built
later for another task wraps the same model, and nobody told `shutdown()` of it.
"""

import torch

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"runner\.pooling_runner\.model",),
    cut=r"runner\.pooling_runner",
    release="lowtide.shutdown(runner)",
    cure="runner.pooling_runner = None",
    holder="runner.pooling_runner",
)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(big(), requires_grad=False)


class PoolingRunner:
    def __init__(self, model: Model) -> None:
        self.model = model


class Runner:
    def __init__(self) -> None:
        self.model: Model | None = Model()
        self.pooling_runner: PoolingRunner | None = PoolingRunner(self.model)

    def shutdown(self) -> None:
        self.model = None


if __name__ == "__main__":
    runner = Runner()
    runner.shutdown()
    examine(CASE)
