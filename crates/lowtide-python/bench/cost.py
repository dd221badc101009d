"""Measures what releases cost: where there is nothing to free, and as a share of tasks.

The program has a model of a few hundred modules on the device, and whatever importing torch leaves in
the heap. Each task works for one second: it allocates activations, and drops some in a reference
cycle. The cleaning behind a task is timed by this program's own clock.

| figure | bar |
|---|---|
| `empty_device_cache`, `resume` with nothing to free, median | 5 ms |
| share of cleaning, of tasks of one second each | 5% |

    python cost.py [--device cuda:0] [--tasks 20] [--seconds 1] [--json FILE]

Exits with 0 if every bar holds. Host memory has no counters of torch, and no bar for the first. There
it is also measured with counters that stand still, as those of a GPU do.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import lowtide
import torch
from lowtide._devices.cpu import CpuDevice

MIB = 1 << 20
NOTHING_MS = 5.0
SHARE = 0.05
REPEATS = 25
WITH_COUNTERS = "empty_device_cache, with counters"


class Counted(CpuDevice):
    """Host memory with counters that stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "counted:0"

    def counters(self) -> tuple[int, int]:
        return 1, 0


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self, activations: torch.Tensor) -> None:
        self.activations, self.me = activations, self


def model_on(device: str) -> torch.nn.Module:
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(200)]
    return torch.nn.Sequential(*layers).to(device)


def task(model: torch.nn.Module, device: str, seconds: float) -> None:
    """Works for so long, then leaves some garbage behind."""
    began = time.perf_counter()
    with torch.no_grad():
        while time.perf_counter() - began < seconds:
            model(torch.ones(64, 256, device=device))
            time.sleep(0.01)
    Cycle(torch.ones(32 * MIB, dtype=torch.uint8, device=device))


def times_ms(call: Callable[[], object], repeats: int = REPEATS) -> dict[str, float]:
    """Times a call. The first, which is not counted, may have something to free."""
    call()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e3)
    return {"median_ms": statistics.median(taken), "worst_ms": max(taken), "best_ms": min(taken)}


def share_of(clean: Callable[[], object], work: Callable[[], None], tasks: int) -> dict[str, float]:
    """Runs tasks with a clean-up after each. Returns the share of time of the clean-ups."""
    began = time.perf_counter()
    cleaning = []
    for _ in range(tasks):
        work()
        before = time.perf_counter()
        clean()
        cleaning.append(time.perf_counter() - before)
    whole = time.perf_counter() - began
    return {
        "share": sum(cleaning) / whole,
        "median_ms": statistics.median(cleaning) * 1e3,
        "worst_ms": max(cleaning) * 1e3,
        "first_ms": cleaning[0] * 1e3,
    }


def measured(device: str, tasks: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)  # Threads that spin would be measured, too.
    model = model_on(device)
    gate = lowtide.Gate(device)

    def pause_and_resume() -> None:
        gate.pause()
        gate.resume()

    def work() -> None:
        task(model, device, seconds)

    nothing = {
        "empty_device_cache": times_ms(lambda: lowtide.empty_device_cache(device)),
        "resume": times_ms(pause_and_resume),
        "resume(collect=False)": times_ms(
            lambda: (gate.pause(), gate.resume(collect=False)),
        ),
    }
    if device == "cpu":
        counted = Counted()
        nothing[WITH_COUNTERS] = times_ms(lambda: lowtide.empty_device_cache(counted))
    collect = times_ms(gc.collect, 5)
    full = times_ms(lambda: lowtide.empty_device_cache(device, collect=True), 5)
    stages = lowtide.Stages(device)
    shares = {
        "tasks, after_inference": share_of(lambda: stages.between("task"), work, tasks),
        "empty_device_cache": share_of(lambda: lowtide.empty_device_cache(device), work, tasks),
    }
    return {
        "device": device,
        "name": torch.cuda.get_device_name(device) if device.startswith("cuda") else "host memory",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "objects": len(gc.get_objects()),
        "gc.collect()": collect,
        "empty_device_cache(collect=True)": full,
        "nothing": nothing,
        "tasks": tasks,
        "seconds": seconds,
        "shares": shares,
    }


def judged(figures: dict[str, Any]) -> bool:
    """Prints the figures beside their bars. Returns whether every bar holds."""
    held = True
    print(f"{figures['device']} ({figures['name']}), torch {figures['torch']}", end=", ")
    print(f"Python {figures['python']}, {figures['objects']:,} objects in the heap")
    for name in ("gc.collect()", "empty_device_cache(collect=True)"):
        print(f"{name}: {figures[name]['median_ms']:.1f} ms")
    for name, one in figures["nothing"].items():
        has_counters = figures["device"] != "cpu" or name == WITH_COUNTERS
        is_held = one["median_ms"] <= NOTHING_MS
        held &= is_held or not has_counters
        bar = (
            f", bar {NOTHING_MS:g} ms: {'held' if is_held else 'NOT held'}" if has_counters else ""
        )
        print(
            f"nothing to free, {name}: {one['median_ms']:.2f} ms (worst {one['worst_ms']:.1f}){bar}"
        )
    for name, one in figures["shares"].items():
        is_held = one["share"] <= SHARE
        held &= is_held
        print(
            f"{figures['tasks']} tasks of {figures['seconds']:g} s, {name}: {one['share']:.1%} of the"
            f" time (median {one['median_ms']:.1f} ms, first {one['first_ms']:.0f} ms), bar"
            f" {SHARE:.0%}: {'held' if is_held else 'NOT held'}"
        )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    asked = parser.parse_args()
    figures = measured(asked.device, asked.tasks, asked.seconds)
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(figures, file, indent=1)
    return 0 if judged(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
