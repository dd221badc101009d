"""A captured CUDA graph.

One graph is captured for each batch size. Each has memory of its own, for everything that is made
inside it, and no tensor refers to that: it stays as long as the graph can be replayed.
"""

from typing import Any

import torch

from zoo.case import DEVICE, examine, pinned

CASE = pinned(
    names=(r"(?i)graph", r"graphs\[32\]"),
    cut=r"graphs\[32\]",
    cure="del graphs[32]",
    holder="graphs",
    storages=False,
    gpu="only CUDA captures graphs",
)

graphs: dict[int, Any] = {}


def capture(size: int, x: torch.Tensor) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (x.expand(size, -1) * 2).sum()  # the product is 128 MiB, inside the graph's memory
    graphs[size] = graph


if __name__ == "__main__":
    hidden = torch.ones(1, 1 << 20, device=DEVICE)
    (hidden * 2).sum()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    capture(32, hidden)
    graphs[32].replay()
    torch.cuda.synchronize()
    examine(CASE)
