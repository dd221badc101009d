"""An engine is shut down, and its model stays in memory.

Another package has a reference to the model, where the engine's author does not look. lowtide finds
it:

    python examples/shutdown.py
"""

import lowtide
import metrics
import torch


class PoolingRunner:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model


class Runner:
    def __init__(self, device: str) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8)))
        self.model.to(device)
        self.pooling_runner = PoolingRunner(self.model)
        self.kv_caches = [torch.zeros(4 << 20, device=device) for _ in range(4)]


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    runner = Runner(device)
    metrics.watch(runner.model)
    print(lowtide.shutdown(runner, device=device))
    print(lowtide.why(device=device))
