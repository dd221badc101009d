"""Measures what docs/figures.md says of `lowtide.ray`: tasks a second, and group sleeps by the number of actors.

python crates/lowtide-python/tests/fleet/figures.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lowtide.ray
import ray
from card import Holder
from nodes import Fleet, started
from test_task import compute


def tasks(name: str, task: Any, count: int) -> None:
    """Prints how many tasks a second run one by one. Each uses 64 KiB of the device."""
    ray.get(task.remote(1 / 16, 0))
    began = time.perf_counter()
    for seed in range(count):
        ray.get(task.remote(1 / 16, seed))
    print(f"{name}: {count / (time.perf_counter() - began):.2f} tasks a second", flush=True)


def groups(count: int) -> None:
    """Prints how long a group sleeps, and how much of it is Ray's."""
    env = lowtide.ray.runtime_env()
    options = {"num_cpus": 0, "runtime_env": env}
    actors = [
        ray.remote(Holder).options(**options, resources={f"node{at % 3}": 1}).remote(16, at)
        for at in range(count)
    ]
    ray.get([actor.check.remote() for actor in actors])
    group = lowtide.ray.Group(actors)
    taken: dict[str, list[tuple[float, float]]] = {"sleep": [], "wake": []}
    for _ in range(8):
        for call, seen in taken.items():
            receipt = getattr(group, call)()
            seen.append((receipt.took_s, receipt.slowest_s))
    for call, seen in taken.items():
        # The first ones start the actors of the nodes.
        whole, slowest = (statistics.median(one[part] for one in seen[1:]) for part in (0, 1))
        print(
            f"{count} actors, {call}: {whole:.3f} s, slowest actor {slowest:.3f} s, Ray {whole - slowest:.3f} s",
            flush=True,
        )
    for actor in actors:
        ray.kill(actor)


def main() -> None:
    """Starts three nodes and measures."""

    def measure(_fleet: Fleet) -> None:
        place = {"num_cpus": 1, "resources": {"node0": 100}}
        env = lowtide.ray.runtime_env()
        tasks("kept worker", lowtide.ray.task(to="4 MiB", runtime_env=env, **place)(compute), 500)
        tasks("kept by Ray, unchecked", ray.remote(max_calls=0, **place)(compute), 500)
        tasks("max_calls=1", ray.remote(max_calls=1, **place)(compute), 10)
        for count in (1, 2, 4, 8) if "tasks" not in sys.argv else ():
            groups(count)

    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as fleet:
        measure(fleet)


if __name__ == "__main__":
    main()
