"""A rollout and a trainer on one card, in two processes that alternate, as RL loops do.

    python3 rl.py --lowtide ./lowtide --results rl.json [--rounds 50] [share calls]

share: both run under `lowtide run --share`, and nobody says a word of sleep. calls: each is put to sleep before the
other's turn and woken for its own, as `lowtide.ray.Group` does. In a round the rollout checks every byte that it has and
uses its scratch, then the trainer checks and writes all of its own anew. Stops after `--limit` seconds a way and tells
how many rounds it was. If there is a folder `ray` beside this file (Ray for this Python, unpacked), the two are actors
of Ray, and the results say so; otherwise they are processes with pipes. Exits 0 only if every byte was right.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from command_line import Told, ask, end, parser_of
from driver import MIB, call, holds, make

RAY = Path(__file__).with_name("ray")


class Torch:
    """Weights as random numbers that a seed tells, and scratch."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.torch = torch
        self.block = min(1 << 30, int(options.weights * 2**30))
        self.blocks = [self.random(0, at) for at in range(round(options.weights * 2**30 / self.block))]
        self.scratch = [
            torch.zeros(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(round(options.scratch * 4))
        ]
        torch.cuda.synchronize()

    def random(self, step: int, at: int) -> Any:
        generator = self.torch.Generator(device="cuda").manual_seed(1000 * step + at)
        size = (self.block // 8,)
        return self.torch.randint(-(1 << 62), 1 << 62, size, device="cuda", generator=generator)

    def is_right(self, step: int) -> bool:
        return all(self.torch.equal(block, self.random(step, at)) for at, block in enumerate(self.blocks))

    def write(self, step: int) -> None:
        for at, block in enumerate(self.blocks):
            block.copy_(self.random(step, at))
        self.torch.cuda.synchronize()

    def use_scratch(self) -> None:
        for piece in self.scratch:
            piece[:64].add_(1)
        self.torch.cuda.synchronize()


class Driver:
    """The same by the driver's functions, in blocks of 4 MiB."""

    def __init__(self, options: argparse.Namespace) -> None:
        call("cuInit", 0)
        self.context = make("cuDevicePrimaryCtxRetain", 0)
        self.size = 4 * MIB
        call("cuCtxSetCurrent", self.context)
        self.blocks = [make("cuMemAlloc_v2", self.size) for _ in range(round(options.weights * 256))]
        self.scratch = [make("cuMemAlloc_v2", 64 * MIB) for _ in range(round(options.scratch * 16))]
        self.write(0)

    def data(self, step: int, at: int) -> bytes:
        return bytes((step + at + byte) % 256 for byte in range(256)) * (self.size // 256)

    def is_right(self, step: int) -> bool:
        call("cuCtxSetCurrent", self.context)
        return all(holds(block, self.data(step, at)) for at, block in enumerate(self.blocks))

    def write(self, step: int) -> None:
        call("cuCtxSetCurrent", self.context)
        for at, block in enumerate(self.blocks):
            call("cuMemcpyHtoD_v2", block, self.data(step, at), self.size)

    def use_scratch(self) -> None:
        call("cuCtxSetCurrent", self.context)
        for piece in self.scratch:
            call("cuMemsetD8_v2", piece, 1, 64)


BACKENDS: dict[str, type[Torch | Driver]] = {"torch": Torch, "driver": Driver}


class Part:
    """The rollout, or the trainer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.memory, self.step = BACKENDS[options.backend](options), 0

    def tell(self, word: str) -> str:
        """Does a turn. Returns whether every byte was right."""
        is_right = self.memory.is_right(self.step)
        self.memory.use_scratch()
        if word == "train":
            self.step += 1
            self.memory.write(self.step)
        return "right" if is_right else "wrong"

    def pid(self) -> int:
        return os.getpid()


class Actor:
    """A part as an actor of Ray."""

    def __init__(self, options: argparse.Namespace) -> None:
        import ray

        self.ray, search = ray, os.pathsep.join(path for path in sys.path if path)
        run = f"{options.lowtide} run --share -- {sys.executable}"
        env = {"py_executable": run, "env_vars": {"PYTHONPATH": search}}
        self.actor = ray.remote(Part).options(num_cpus=1, runtime_env=env).remote(options)
        self.pid = ray.get(self.actor.pid.remote())

    def tell(self, word: str) -> str:
        return str(self.ray.get(self.actor.tell.remote(word)))

    def end(self) -> int:
        self.ray.kill(self.actor)
        return 0


class Program(Told):
    """A part as a process with pipes."""

    def __init__(self, options: argparse.Namespace) -> None:
        same = ["--backend", options.backend, "--weights", options.weights, "--scratch", options.scratch]
        itself = [sys.executable, __file__, "--part", *map(str, same)]
        super().__init__([options.lowtide, "run", "--share", "--", *itself])
        self.line()


def loop(options: argparse.Namespace, way: str, made: type[Actor | Program]) -> dict[str, Any]:
    """Has the two alternate. Returns the times of their turns."""
    rollout = made(options)
    trainer = made(options)
    turns: dict[str, list[float]] = {"rollout": [], "train": []}
    moves: list[float] = []
    wrong, began = 0, time.perf_counter()
    for _ in range(options.rounds):
        if time.perf_counter() - began > options.limit:
            break
        for word, mine, other in (("rollout", rollout, trainer), ("train", trainer, rollout)):
            start = time.perf_counter()
            if way == "calls":
                ask(options.lowtide, "sleep", other.pid)
                ask(options.lowtide, "wake", mine.pid)
                moves.append(time.perf_counter() - start)
            wrong += mine.tell(word) != "right"
            turns[word].append(time.perf_counter() - start)
    took_s = time.perf_counter() - began
    codes = [rollout.end(), trainer.end()]
    median = {word: statistics.median(taken) for word, taken in turns.items() if taken}
    rounds = len(turns["train"])
    moved = {"move_median_s": statistics.median(moves)} if moves else {}
    return {"rounds": rounds, "took_s": took_s, "median_s": median, "wrong": wrong, "codes": codes, **moved}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ways", nargs="*", default=["share", "calls"], help="share, calls")
    parser.add_argument("--results", type=Path, help="where to write JSON")
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--limit", type=float, default=55.0, help="seconds for each way")
    parser.add_argument("--weights", type=float, default=8.0, help="GiB that each part has and checks")
    parser.add_argument("--scratch", type=float, default=66.0, help="GiB beside them, mostly zero")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part = Part(options)
        print("ready", flush=True)
        for line in sys.stdin:
            print(part.tell(line.strip()), flush=True)
        return
    made: type[Actor | Program] = Program
    version = None
    if RAY.is_dir():
        sys.path.insert(0, str(RAY))
        import ray

        ray.init(
            "local", num_cpus=4, include_dashboard=False, object_store_memory=100 * MIB, log_to_driver=False
        )
        made, version = Actor, ray.__version__
    found: dict[str, Any] = {"ray": version, "weights_gib": options.weights, "scratch_gib": options.scratch}
    failures = []
    for way in options.ways:
        found[way] = loop(options, way, made)
        print(way, json.dumps(found[way]), flush=True)
        if found[way]["wrong"] or any(found[way]["codes"]) or not found[way]["rounds"]:
            failures.append(f"{way}: {found[way]['wrong']} wrong turns, exit codes {found[way]['codes']}")
    end(failures, options.results, found)


if __name__ == "__main__":
    main()
