"""Measures `shutdown` and the end of a stage with a model of 108 MiB among many objects, old and new package in turn.

    python shutdown_speed.py OLD NEW [--objects 470000] [--times 7]

OLD and NEW are folders with a package `lowtide`. Each has a process of its own, on host memory.
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
    started = [start(folder, given.objects) for folder in given.folders]
    found: list[list[list[float]]] = [[] for _ in started]
    for _ in range(given.times + 1):
        for one, rows in zip(started, found):
            assert one.stdin is not None and one.stdout is not None
            print("again", file=one.stdin, flush=True)
            rows.append([float(word) for word in one.stdout.readline().split()])
    medians = [
        [statistics.median(one) for one in zip(*rows[1:])] for rows in found
    ]  # The first prepares.
    names = ("shutdown", "shutdown, CPU", "stage", "stage, CPU")
    for name, old, new in zip(names, *medians):
        print(f"{name}: {old:.3f} s, {new:.3f} s, {new / old:.2f} of it")


def start(folder: str, objects: int) -> subprocess.Popen[str]:
    """Starts the process that measures a package whenever it is told to."""
    command = [sys.executable, __file__, folder, "--objects", str(objects)]
    variables = os.environ | {"PYTHONPATH": folder, "LOWTIDE_DEVICE": "cpu"}
    return subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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
    for _ in sys.stdin:
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
        print(*took, flush=True)


if __name__ == "__main__":
    main()
