"""Measures `why` on a heap of millions of objects, beside objgraph.

The heap is like that of a service: requests with headers and items. Each request refers to the next
one and to one of the thousand before it; with `--scattered`, to one from anywhere, which defeats
every cache. One tensor lies eight references deep. Measured are the time of the whole answer with
its text, the time that objgraph needs for one chain, the peak of memory, and whether every object
has the same number of references afterwards.

    python why_speed.py [--objects 2000000] [--scattered] [--json FILE]
"""

from __future__ import annotations

import argparse
import array
import gc
import itertools
import json
import os
import platform
import random
import sys
import time
from typing import Any

import lowtide
import objgraph
import torch

SEED = 20261115


class Request:
    def __init__(self, number: int) -> None:
        self.number = number
        self.headers = {"tags": [number]}
        self.next: Request | None = None
        self.related: Request | None = None


class Service:
    pass


def requests(objects: int, scattered: bool) -> list[Request]:
    """So many objects that the collector tracks: three for each request."""
    made = [Request(number) for number in range(objects // 3)]
    dice = random.Random(SEED)
    for request, following in itertools.pairwise(made):
        request.next = following
        near = request.number - dice.randrange(1000)
        request.related = made[dice.randrange(len(made)) if scattered else max(0, near)]
    return made


def load(target: torch.Tensor) -> Service:
    """The target, eight references below a module."""
    service = Service()
    service.registry = {"models": [{"reranker": [{"weights": (target,)}]}]}
    return service


def counts(world: list[Request]) -> array.array[int]:
    """The number of references to each object."""
    every = array.array("l")
    for request in world:
        headers = request.headers
        every.append(sys.getrefcount(request))
        every.append(sys.getrefcount(headers))
        every.append(sys.getrefcount(headers["tags"]))
    return every


def in_use() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_highest() -> None:
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="where to write the figures")
    parser.add_argument("--scattered", action="store_true")
    parser.add_argument("--no-objgraph", action="store_true")
    arguments = parser.parse_args()

    print(f"seed {SEED}, {arguments.objects:,} objects", flush=True)
    world = requests(arguments.objects, arguments.scattered)
    target = torch.zeros(1 << 20)
    globals()["service"] = load(target)
    gc.collect()
    tracked = len(gc.get_objects())
    before = counts(world)
    own = sys.getrefcount(target)
    figures: dict[str, Any] = {
        "tracked_objects": tracked,
        "why_s": [],
        "python": sys.version.split()[0],
    }
    for _ in range(arguments.repeats):
        forget_highest()
        start = in_use()
        began = time.perf_counter()
        answer = lowtide.why(target)
        text = str(answer)
        figures["why_s"].append(time.perf_counter() - began)
        figures["extra_bytes_per_object"] = (peak_bytes() - start) / tracked
    figures["same_counts"] = counts(world) == before and sys.getrefcount(target) == own
    figures["answer"] = text
    print(text)
    everything = time.perf_counter()
    figures["why_all_text"] = str(lowtide.why(device="cpu"))
    figures["why_all_s"] = time.perf_counter() - everything
    if not arguments.no_objgraph:
        began = time.perf_counter()
        chain = objgraph.find_backref_chain(target, objgraph.is_proper_module)
        figures["objgraph_s"] = time.perf_counter() - began
        figures["objgraph_chain"] = [type(one).__name__ for one in chain]
        figures["ratio"] = (
            figures["objgraph_s"] / sorted(figures["why_s"])[len(figures["why_s"]) // 2]
        )
    figures["machine"] = platform.processor() or platform.machine()
    for name, value in figures.items():
        if "text" not in name and name != "answer":
            print(f"{name}: {value}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
