"""Programs that together need more than the card, under `lowtide run --share`.

    python3 share.py --lowtide ./lowtide --results share.json [requests busy graph jax jobs half interactive]

requests: three programs with 16 GiB of random bf16 weights and 60 GiB of scratch, 2 GiB of it written. After a quiet
minute, 200 requests in random order, one at a time: is the first result right, and how long does it take?
busy: two programs that change all their weights in each step; `graph` does it by a captured graph, `jax` with JAX.
jobs: two programs with a fixed number of steps, one after the other and together. half: the same, and each computes
40% of its time. interactive: a program that is asked now and then, beside a batch job that never rests.
Exits 0 only if every result is right. The sizes can be made small, for a small device; `driver` needs no framework.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from command_line import Told, end, parser_of
from driver import MIB, Word, call, make

VALUES = 1 << 26  # of a weight tensor
PIECE = 256 * MIB  # of scratch


class Torch:
    """Weights, scratch and steps by PyTorch; with `graph`, a step is the replay of a captured one."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.torch = torch
        self.generator = torch.Generator(device="cuda").manual_seed(options.seed)
        count = max(1, round(options.weights * 2**30 / 2 / VALUES))
        self.weights = [
            torch.randn(VALUES, device="cuda", generator=self.generator).bfloat16()
            for _ in range(count)
        ]
        torch.cuda.empty_cache()
        self.want = self.samples()
        count = round(options.scratch * 2**30 / PIECE)
        self.scratch = [torch.zeros(PIECE, dtype=torch.uint8, device="cuda") for _ in range(count)]
        for piece in self.scratch[: round(options.dirty * 2**30 / PIECE)]:
            piece.random_(0, 255, generator=self.generator)
        self.square = torch.randn(4096, 4096, device="cuda", generator=self.generator).bfloat16()
        self.graph: Any = None
        if options.backend == "graph":
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                self.work()
                self.work()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.work()
        torch.cuda.synchronize()

    def samples(self) -> list[float]:
        return [tensor[::65537].double().sum().item() for tensor in self.weights]

    def is_right(self) -> bool:
        return self.samples() == self.want

    def compute(self) -> None:
        for _ in range(40):
            self.torch.mm(self.square, self.square)
        self.torch.cuda.synchronize()

    def work(self) -> None:
        for tensor in self.weights:
            tensor.neg_()  # exact

    def change(self) -> None:
        self.graph.replay() if self.graph else self.work()
        self.want = [-value for value in self.want]

    def use_scratch(self) -> None:
        for piece in self.scratch:
            piece[:64].add_(1)
        self.torch.cuda.synchronize()


class Jax:
    """The same by JAX, which takes its share of the device at once."""

    def __init__(self, options: argparse.Namespace) -> None:
        import jax
        import jax.numpy as jnp

        self.jax = jax
        count = max(1, round(options.weights * 2**30 / 2 / VALUES))
        keys = jax.random.split(jax.random.PRNGKey(options.seed), count)
        self.weights = [jax.random.normal(key, (VALUES,), dtype=jnp.bfloat16) for key in keys]
        self.negate = jax.jit(lambda one: -one, donate_argnums=0)
        self.sample = jax.jit(lambda one: one[::65537].astype(jnp.float32).sum())
        self.square = jnp.ones((4096, 4096), dtype=jnp.bfloat16)
        self.product = jax.jit(lambda one: one @ one)
        self.want = self.samples()

    def samples(self) -> list[float]:
        return [float(self.sample(one)) for one in self.weights]

    def is_right(self) -> bool:
        return self.samples() == self.want

    def compute(self) -> None:
        for _ in range(40):
            product = self.product(self.square)
        product.block_until_ready()

    def change(self) -> None:
        self.weights = [self.negate(one) for one in self.weights]
        self.want = [-value for value in self.want]

    def use_scratch(self) -> None:
        self.jax.block_until_ready(self.weights)


class Driver:
    """Bytes of the host that go to the device and come back, by the driver's functions."""

    def __init__(self, options: argparse.Namespace) -> None:
        call("cuInit", 0)
        call("cuCtxSetCurrent", make("cuDevicePrimaryCtxRetain", 0))
        dice = random.Random(options.seed)
        self.size = 4 * MIB
        self.bytes = [dice.randbytes(self.size) for _ in range(round(options.weights * 256) or 1)]
        self.at = [self.allocate(self.size) for _ in self.bytes]
        for at, data in zip(self.at, self.bytes, strict=True):
            call("cuMemcpyHtoD_v2", at, data, self.size)
        self.scratch = [self.allocate(64 * MIB) for _ in range(round(options.scratch * 16))]

    def allocate(self, size: int) -> int:
        at = make("cuMemAlloc_v2", size)
        if not at:
            raise SystemExit("no memory")
        return at

    def is_right(self) -> bool:
        found = bytes(self.size)
        for at, data in zip(self.at, self.bytes, strict=True):
            call("cuMemcpyDtoH_v2", found, at, self.size)
            if found != data:
                return False
        return True

    def compute(self) -> None:
        time.sleep(0.02)

    def change(self) -> None:
        self.bytes = [data[1:] + data[:1] for data in self.bytes]
        for at, data in zip(self.at, self.bytes, strict=True):
            call("cuMemcpyHtoD_v2", at, data, self.size)

    def use_scratch(self) -> None:
        for at in self.scratch:
            call("cuMemsetD8_v2", at, 7, Word(MIB))


BACKENDS = {"torch": Torch, "graph": Torch, "jax": Jax, "driver": Driver}


def serve(options: argparse.Namespace) -> None:
    """Does what it is told: `request` checks the weights; `steps COUNT UNTIL SHARE` changes and checks them."""
    began = time.time()
    memory = BACKENDS[options.backend](options)
    print(json.dumps({"ready": options.seed, "s": time.time() - began}), flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        began = time.time()
        if verb == "request":
            is_right, first = memory.is_right(), time.time() - began
            memory.compute()
            memory.use_scratch()
            said = {"is_right": is_right, "first_s": first, "whole_s": time.time() - began}
        else:
            said = steps(memory, *(float(word) for word in words))
        print(json.dumps(said), flush=True)


def steps(memory: Any, count: float, until_s: float, share: float) -> dict[str, object]:
    """Changes and checks all weights, and rests so that it computes for a share of the time. Returns when."""
    done, is_right = [], True
    while len(done) < count and time.time() < until_s:
        began = time.time()
        for _ in range(4):
            memory.compute()
            memory.change()
        memory.use_scratch()
        is_right = memory.is_right() and is_right
        done.append((began, time.time()))
        time.sleep((done[-1][1] - began) * (1 / share - 1) if share < 1 else 0)
    return {"is_right": is_right, "steps": done}


class Sharer(Told):
    """A program under `lowtide run --share`, or without lowtide."""

    def __init__(self, options: argparse.Namespace, seed: int, backend: str, *more: str) -> None:
        sizes = {"seed": seed, "backend": backend, **options.sizes}
        words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, __file__, "--serve", *words]
        run = [options.lowtide, "run", "--share", *more, "--"]
        # JAX takes this share of the device at its start.
        super().__init__(run + command, {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.55"})
        self.name, self.answers = f"{backend} {seed}", [json.loads(self.line())]

    def say(self, words: str) -> dict[str, Any]:
        self.answers.append(json.loads(self.tell(words)))
        return self.answers[-1]

    def begin(self, words: str) -> threading.Thread:
        thread = threading.Thread(target=self.say, args=[words])
        thread.start()
        return thread


class Watch(threading.Thread):
    """Notes what NVML says of each process, for the picture."""

    def __init__(self, sharers: list[Sharer]) -> None:
        super().__init__(daemon=True)
        self.names = {sharer.pid: sharer.name for sharer in sharers}
        self.samples: list[tuple[float, dict[str, float]]] = []
        self.start()

    def run(self) -> None:
        query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        command = ["nvidia-smi", *query, "-lms", "100"]
        try:
            watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            return
        for line in watch.stdout or []:
            pid, mib = line.split(",")
            self.samples.append((time.time(), {self.names.get(int(pid), pid): float(mib)}))


def requests(options: argparse.Namespace, backend: str) -> dict[str, Any]:
    sharers = [Sharer(options, seed, backend) for seed in (1, 2, 3)]
    dice = random.Random(options.seed)
    watch = Watch(sharers)
    time.sleep(options.quiet)
    found, last = [], None
    for _ in range(options.requests):
        number = dice.randrange(len(sharers))
        said = sharers[number].say("request")
        found.append({"program": number, "is_switch": number != last, "at": time.time(), **said})
        last = number
    codes = [sharer.end() for sharer in sharers]
    firsts = sorted(one["first_s"] for one in found)
    switches = sorted(one["first_s"] for one in found if one["is_switch"])
    return {
        "right": sum(one["is_right"] for one in found),
        "of": len(found),
        "median_s": statistics.median(firsts),
        "p95_s": firsts[int(len(firsts) * 0.95)],
        "worst_s": firsts[-1],
        "switches": {"count": len(switches), "median_s": statistics.median(switches or [0])},
        "exits": codes,
        "requests": found,
        "samples": watch.samples,
        "failed": [f"request {number}" for number, one in enumerate(found) if not one["is_right"]],
    }


def busy(options: argparse.Namespace, backend: str) -> dict[str, Any]:
    first = Sharer(options, 1, backend)
    alone = first.say(f"steps 10 {time.time() + 60} 1")["steps"]
    step_s = statistics.median(end_s - began for began, end_s in alone)
    second = Sharer(options, 2, backend)
    began = time.time()
    threads = [one.begin(f"steps 1e9 {began + options.busy} 1") for one in (first, second)]
    for thread in threads:
        thread.join()
    both = [one.answers[-1] for one in (first, second)]
    until = max(each["steps"][-1][1] for each in both)
    counts = [len(each["steps"]) for each in both]
    codes = [one.end() for one in (first, second)]
    return {
        "step_s": step_s,
        "steps": counts,
        "took_s": until - began,
        "moving": 1 - sum(counts) * step_s / (until - began),
        "turns": [turns(each["steps"], step_s) for each in both],
        "exits": codes,
        "failed": [f"program {number}" for number, each in enumerate(both) if not each["is_right"]],
    }


def turns(done: list[tuple[float, float]], step_s: float) -> list[tuple[float, float]]:
    """Returns the beginnings and ends of the turns: a step that takes long has waited."""
    found = [done[0]]
    for (_, before), (_, after) in itertools.pairwise(done):
        if after - before > max(1, 5 * step_s):
            found.append((after - step_s, after))
        found[-1] = (found[-1][0], after)
    return found


def jobs(options: argparse.Namespace, backend: str, share: float = 1) -> dict[str, Any]:
    words = f"steps {options.steps} {time.time() + 500} {share}"
    took = {}
    failed = []
    for together in (False, True):
        began = time.time()
        if together:
            sharers = [Sharer(options, seed, backend) for seed in (1, 2)]
            began = time.time()
            threads = [sharer.begin(words) for sharer in sharers]
            for thread in threads:
                thread.join()
            took["together"] = time.time() - began
        else:
            took["alone"] = 0.0
            for seed in (1, 2):
                sharers = [Sharer(options, seed, backend)]
                began = time.time()
                sharers[0].say(words)
                took["alone"] += time.time() - began
                sharers[0].end()
                failed += ["alone"] * (not sharers[0].answers[-1]["is_right"])
            continue
        failed += ["together" for one in sharers if not one.answers[-1]["is_right"]]
        failed += ["exit" for one in sharers if one.end() != 0]
    return {**took, "ratio": took["together"] / took["alone"], "failed": failed}


def interactive(options: argparse.Namespace, backend: str) -> dict[str, Any]:
    batch = Sharer(options, 1, backend, "--priority", "batch")
    asked = Sharer(options, 2, backend, "--priority", "interactive")
    thread = batch.begin(f"steps 1e9 {time.time() + options.busy} 1")
    found = []
    while thread.is_alive():
        found.append(asked.say("request"))
        time.sleep(3)
    thread.join()
    firsts = [one["first_s"] for one in found]
    failed = ["request" for one in found if not one["is_right"]]
    failed += ["batch"] * (not batch.answers[-1]["is_right"])
    codes = [batch.end(), asked.end()]
    return {
        "requests": len(found),
        "median_s": statistics.median(firsts),
        "worst_s": max(firsts),
        "steps": len(batch.answers[-1]["steps"]),
        "exits": codes,
        "failed": failed,
    }


TRIALS: dict[str, Callable[..., dict[str, Any]]] = {
    "requests": requests,
    "busy": busy,
    "graph": busy,
    "jax": busy,
    "jobs": jobs,
    "half": partial(jobs, share=0.4),
    "interactive": interactive,
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("parts", nargs="*", default=list(TRIALS), help="what is tried")
    parser.add_argument("--results", type=Path, help="where the results go, as JSON")
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--weights", type=float, default=16, help="GiB of a program")
    parser.add_argument("--scratch", type=float, default=60, help="GiB of a program")
    parser.add_argument(
        "--dirty", type=float, default=2, help="GiB of its scratch that are written"
    )
    parser.add_argument("--quiet", type=float, default=60, help="seconds before the requests")
    parser.add_argument("--requests", type=int, default=200, help="how many requests")
    parser.add_argument("--busy", type=float, default=60, help="seconds that busy programs work")
    parser.add_argument("--steps", type=int, default=60, help="steps of a job")
    parser.add_argument("--seed", type=int, default=35, help="of the order of requests")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options)
    options.sizes = {name: getattr(options, name) for name in ("weights", "scratch", "dirty")}
    found, failures = {}, []
    for part in options.parts:
        backend = part if part in BACKENDS else options.backend
        found[part] = TRIALS[part](options, backend)
        failures += [f"{part}: {each}" for each in found[part].pop("failed")]
        brief = {
            name: value
            for name, value in found[part].items()
            if name not in ("requests", "samples")
        }
        print(part, json.dumps(brief), flush=True)
    end(failures, options.results, found)


if __name__ == "__main__":
    main()
