"""Measures `shutdown` and the end of a stage with a model of 108 MiB among many objects, old and new package in turn.

    python shutdown_speed.py OLD NEW [--objects 470000] [--times 7]

OLD and NEW are folders with a package `lowtide`. Each is measured in processes of its own, in turn, and on host memory.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--objects", type=int, default=470_000)
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args()
    if len(given.folders) == 1:
        measure(given.objects)
        return
    found: dict[str, list[list[float]]] = {folder: [] for folder in given.folders}
    for _ in range(given.times):
        for folder, rows in found.items():
            command = [sys.executable, __file__, folder, "--objects", str(given.objects)]
            variables = os.environ | {"PYTHONPATH": folder, "LOWTIDE_DEVICE": "cpu"}
            said = subprocess.run(
                command, env=variables, check=True, capture_output=True, text=True
            )
            rows.append([float(word) for word in said.stdout.split()])
    medians = [[statistics.median(one) for one in zip(*rows)] for rows in found.values()]
    names = ("shutdown", "shutdown, CPU", "stage", "stage, CPU")
    for name, old, new in zip(names, *medians):
        print(f"{name}: {old:.3f} s, {new:.3f} s, {new / old:.2f} of it")


def measure(objects: int) -> None:
    """Prints the seconds of a shutdown and of a stage's end, each by the clock and of the processor."""
    import lowtide
    import torch

    torch.set_num_threads(1)

    class Holder:
        model: Any

    def model() -> torch.nn.Module:
        layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048) for _ in range(9)]
        return torch.nn.Sequential(*layers)

    world: list[object] = []
    while len(gc.get_objects()) < objects:
        world += [{"tags": [number]} for number in range(10_000)]
    for _ in range(2):  # The first one prepares.
        holder = Holder()
        holder.model = model()
        began, of_processor = time.perf_counter(), time.process_time()
        lowtide.shutdown(holder)
        took = [time.perf_counter() - began, time.process_time() - of_processor]
        with lowtide.stage("a model"):
            made = model()
            began, of_processor = time.perf_counter(), time.process_time()
        took += [time.perf_counter() - began, time.process_time() - of_processor]
        del made
    print(*took)


if __name__ == "__main__":
    main()
