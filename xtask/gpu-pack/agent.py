"""Measures the agent with a program that nobody changed: the first slice of the agent on a GPU.

    python3 agent.py --lowtide ./lowtide --cost ./cost --results agent.json

It starts itself under `lowtide run` (the part `serve`), fills the device with random bytes, captures a graph, puts
the program to sleep, wakes it, and looks at every byte. Then come idle turns, and launches with and without the
agent in interleaved pairs. `--backend driver` needs no torch: it uses the driver's functions through ctypes.
Exits 0 only if all data were right and every sleep was proved.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

MIB = 1 << 20
LIMIT_S = 300
REST_S = 2
# Loops that are run without and with the agent.
LOOPS = ["launches", "allocations", "replays", "trims"]


class Torch:
    """Device memory as PyTorch has it."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.blocks: list[object] = []
        self.sums: list[int] = []
        self.graph: Any = None
        self.additions: Any = None

    def fill(self, count: int, mib: int) -> None:
        torch = self.torch
        torch.manual_seed(15)
        for _ in range(count):
            block = torch.randint(-(1 << 62), 1 << 62, (mib * MIB // 8,), device="cuda")
            self.blocks.append(block)
        self.sums = self.sum()
        # The graph adds one to a number and writes the sum of the first block.
        self.number = torch.zeros((), dtype=torch.int64, device="cuda")
        self.total = torch.zeros((), dtype=torch.int64, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.number += 1
            self.total.copy_(self.blocks[0].sum())
        stream.synchronize()
        self.number.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.number += 1
            self.total.copy_(self.blocks[0].sum())
        self.replayed = 0

    def sum(self) -> list[int]:
        return [int(block.sum()) for block in self.blocks]

    def check(self) -> bool:
        return self.sum() == self.sums

    def replay(self) -> bool:
        self.graph.replay()
        self.torch.cuda.synchronize()
        self.replayed += 1
        return (int(self.number), int(self.total)) == (self.replayed, self.sums[0])

    def touch(self) -> bool:
        return int(self.blocks[0].sum()) == self.sums[0]

    def drop(self) -> None:
        import gc

        self.graph = self.number = self.total = None
        self.blocks.clear()
        gc.collect()
        self.torch.cuda.empty_cache()

    def launches(self, count: int) -> float:
        torch = self.torch
        number = torch.zeros(1024, device="cuda")
        for _ in range(count // 10):
            number.add_(1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            number.add_(1)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    def allocations(self, count: int) -> float:
        torch = self.torch
        torch.cuda.synchronize()
        began = time.perf_counter()
        for index in range(count):
            block = torch.empty((4 + index % 5) * MIB, dtype=torch.uint8, device="cuda")
            block.zero_()
            del block
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    def trims(self, count: int) -> float:
        """Takes memory of the driver and gives it back each time, which programs avoid."""
        torch = self.torch
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count // 100 + 1):
            block = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
            del block
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / (count // 100 + 1)

    def replays(self, count: int) -> float:
        torch = self.torch
        graph = self.twenty_additions()
        count = count // 4 + 1
        for _ in range(count // 10):
            graph.replay()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    def twenty_additions(self) -> Any:
        if self.additions is None:
            self.number = self.torch.zeros(1024, device="cuda")
            self.additions = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(self.additions):
                for _ in range(20):
                    self.number.add_(1)
        return self.additions


class Driver:
    """Device memory by the driver's own functions."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.blocks: list[ctypes.c_uint64] = []
        self.data: list[bytes] = []

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} failed with {code}")

    def fill(self, count: int, mib: int) -> None:
        dice = random.Random(15)
        self.size = ctypes.c_size_t(mib * MIB)
        for _ in range(count):
            at = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(at), self.size)
            self.blocks.append(at)
            self.data.append(dice.randbytes(mib * MIB))
            self.call("cuMemcpyHtoD_v2", at, self.data[-1], self.size)

    def is_right(self, number: int) -> bool:
        found = ctypes.create_string_buffer(self.size.value)
        self.call("cuMemcpyDtoH_v2", found, self.blocks[number], self.size)
        return found.raw == self.data[number]

    def check(self) -> bool:
        return all(self.is_right(number) for number in range(len(self.blocks)))

    def replay(self) -> bool:
        return True

    def touch(self) -> bool:
        return self.is_right(0)

    def drop(self) -> None:
        for at in self.blocks:
            self.call("cuMemFree_v2", at)
        self.blocks.clear()

    def launches(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self.call("cuCtxSynchronize")
        return (time.perf_counter() - began) / count

    replays = launches

    def trims(self, count: int) -> float:
        return self.allocations(count // 100 + 1)

    def allocations(self, count: int) -> float:
        began = time.perf_counter()
        at = ctypes.c_uint64()
        for index in range(count):
            self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t((4 + index % 5) * MIB))
            self.call("cuMemFree_v2", at)
        return (time.perf_counter() - began) / count


def backend(options: argparse.Namespace) -> Torch | Driver:
    return Torch() if options.backend == "torch" else Driver()


def serve(options: argparse.Namespace) -> None:
    """Does what it is told on standard input, one word a line, and answers each with JSON."""
    memory = backend(options)
    memory.fill(options.count, options.mib)
    actions = {
        "check": memory.check,
        "replay": memory.replay,
        "touch": memory.touch,
        "drop": memory.drop,
        "ready": lambda: True,
    }
    for line in sys.stdin:
        began = time.perf_counter()
        result = actions[line.strip()]()
        print(json.dumps({"is": result, "took_s": time.perf_counter() - began}), flush=True)


def loop(options: argparse.Namespace) -> None:
    """Runs the loop that each line of standard input names, and answers with the seconds of one turn."""
    memory = backend(options)
    for name in options.loop or LOOPS:
        getattr(memory, name)(options.loops // 10)
    os.sched_setaffinity(0, {options.core})
    for line in sys.stdin:
        print(getattr(memory, line.strip())(options.loops), flush=True)


class Program:
    """The program under `lowtide run`."""

    def __init__(self, options: argparse.Namespace, *run_options: str) -> None:
        self.lowtide = options.lowtide
        command = [options.lowtide, "run", *run_options, "--", *itself(options, "serve")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def tell(self, word: str) -> dict[str, object]:
        to, answers = self.process.stdin, self.process.stdout
        assert to is not None and answers is not None
        to.write(word + "\n")
        to.flush()
        line = read_line(answers, word)
        return dict(json.loads(line))

    def ask(self, *words: str) -> dict[str, object]:
        """Asks the agent by the command line."""
        verb, *others = words
        command = [self.lowtide, verb, str(self.pid), "--json", *others]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        took_s = time.perf_counter() - began
        if not done.stdout.strip():
            raise SystemExit(f"lowtide {verb} says nothing: {done.stderr}")
        return {**json.loads(done.stdout), "exit": done.returncode, "command_s": took_s}

    def used(self) -> int | None:
        """Returns what the driver says that this process uses, in bytes."""
        done = subprocess.run(
            [self.lowtide, "ps", "--json"], capture_output=True, text=True, timeout=60, check=False
        )
        for device in json.loads(done.stdout).get("devices", []):
            for process in device.get("processes", []):
                if process.get("pid") == self.pid:
                    return process.get("bytes")
        return None

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=60)
            raise SystemExit("the program did not end") from None


def read_line(answers: IO[str], word: str) -> str:
    import select

    ready, _, _ = select.select([answers], [], [], LIMIT_S)
    line = answers.readline() if ready else ""
    if not line:
        raise SystemExit(f"the program did not answer to {word!r} within {LIMIT_S} s")
    return line


def itself(options: argparse.Namespace, part: str) -> list[str]:
    same = ["--backend", options.backend, "--count", str(options.count), "--mib", str(options.mib)]
    chosen = [word for name in options.loop for word in ("--loop", name)]
    return [sys.executable, __file__, *same, "--loops", str(options.loops), *chosen, "--part", part]


def sleep_and_wake(options: argparse.Namespace, failures: list[str]) -> dict[str, object]:
    program = Program(options)
    program.tell("ready")
    found: dict[str, object] = {"used_awake": program.used(), "status": program.ask("status")}

    def sleep(name: str) -> None:
        answer = program.ask("sleep")
        found[name] = answer
        if answer["exit"] != 0:
            failures.append(f"{name}: {answer.get('reason', 'not proved')}")
        receipts = answer.get("receipts")
        took = [receipt["took_s"] for receipt in receipts] if isinstance(receipts, list) else []
        print(f"{name}: {took} s, the command {answer['command_s']:.3f} s", flush=True)

    def expect(name: str, word: str) -> None:
        found[name] = program.tell(word)
        print(f"{name}: {found[name]}", flush=True)
        if found[name]["is"] is not True:  # type: ignore[index]
            failures.append(f"{name}: the data are not what they were")

    sleep("first sleep")
    found["used_asleep"] = program.used()
    # Right after much memory was released, the copy engine is slower for a while.
    found["wake at once"] = program.ask("wake")
    print(f"wake at once: {found['wake at once']}", flush=True)
    sleep("second sleep")
    time.sleep(REST_S)
    found["wake"] = program.ask("wake")
    print(f"wake: {found['wake']}", flush=True)
    expect("sums after a wake", "check")
    sleep("unchanged sleep")
    expect("wake at a touch", "touch")
    expect("sums after a touch", "check")
    sleep("sleep before a replay")
    expect("a captured graph after a sleep", "replay")
    sleep("sleep before a second replay")
    expect("a captured graph after two sleeps", "replay")
    program.tell("drop")
    found["used_freed"] = program.used()
    asleep, freed = found["used_asleep"], found["used_freed"]
    if isinstance(asleep, int) and isinstance(freed, int):
        found["asleep_above_freed_mib"] = (asleep - freed) / MIB
        print(
            f"asleep: {(asleep - freed) / MIB:.1f} MiB more than with everything freed", flush=True
        )
    program.end()
    return found


def idle_turns(options: argparse.Namespace, failures: list[str]) -> dict[str, object]:
    program = Program(options, "--idle", "500ms")
    program.tell("ready")
    asleep = right = 0
    for _ in range(options.turns):
        limit = time.monotonic() + 60
        while time.monotonic() < limit and not program.ask("status")["is_asleep"]:
            time.sleep(0.2)
        asleep += bool(program.ask("status")["is_asleep"])
        right += program.tell("touch")["is"] is True
    used = program.used()
    program.end()
    if (asleep, right) != (options.turns, options.turns):
        failures.append(f"idle: asleep {asleep} and right {right} times of {options.turns}")
    print(f"idle: asleep {asleep}, right {right} of {options.turns}", flush=True)
    return {"turns": options.turns, "asleep": asleep, "right": right, "used_afterwards": used}


class Loops:
    """A process that runs loops, with the agent or without it."""

    def __init__(self, command: list[str], with_agent: str | None) -> None:
        environment = {**os.environ, **({"LD_PRELOAD": with_agent} if with_agent else {})}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, name: str) -> float:
        to, answers = self.process.stdin, self.process.stdout
        assert to is not None and answers is not None
        to.write(name + "\n")
        to.flush()
        return float(read_line(answers, name))

    def end(self) -> None:
        self.process.communicate(timeout=60)


def pair(options: argparse.Namespace, number: int) -> dict[str, list[tuple[float, float]]]:
    """Runs the loops without and with the agent: two processes on one core, a block of each in turn.

    A process of its own is up to a third faster or slower than the next one on a shared machine. Blocks that follow
    each other at once see the same machine.
    """
    agent, command = os.environ["LOWTIDE_AGENT_LIBRARY"], itself(options, "loops")
    cores = sorted(os.sched_getaffinity(0))
    core = cores[number % len(cores)]
    both = [Loops([*command, "--core", str(core)], preload) for preload in (None, agent)]
    blocks: dict[str, list[tuple[float, float]]] = {}
    for name in options.loop or LOOPS:
        for block in range(options.blocks):
            # Each is first in every second block.
            order = both if block % 2 == 0 else both[::-1]
            took = {process: process.run(name) for process in order}
            blocks.setdefault(name, []).append((took[both[0]], took[both[1]]))
    for process in both:
        process.end()
    return blocks


def pairs(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Runs pairs of processes. A ratio is one of speeds: 1 is no cost. That of a pair is of its blocks' medians."""
    runs = []
    for number in range(options.pairs):
        runs.append(pair(options, number))
        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
    found: dict[str, dict[str, object]] = {}
    for name in (options.loop or LOOPS) if runs else []:
        medians = [
            [statistics.median(side) for side in zip(*run[name], strict=True)] for run in runs
        ]
        ratios = sorted(without / with_it for without, with_it in medians)
        middle = statistics.median(ratios)
        found[name] = {"blocks_s": [run[name] for run in runs], "ratios": ratios, "ratio": middle}
        spread = f"{ratios[0]:.4f} to {ratios[-1]:.4f}"
        turn_us = statistics.median(without for without, _ in medians) * 1e6
        print(
            f"{name}: speed {middle:.4f} of that without ({spread}); {turn_us:.2f} µs a turn without",
            flush=True,
        )
    return found


def launches_from_c(cost: str, threads: str) -> str:
    """Launches by the driver's function and by the agent's in turn, in one process."""
    environment = {**os.environ, "LD_PRELOAD": os.environ["LOWTIDE_AGENT_LIBRARY"]}
    command = [cost, threads, "1000"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    print(f"launches from C, {threads} threads: {done.stdout.strip()}{done.stderr}", flush=True)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lowtide", default="lowtide", help="the program `lowtide`")
    parser.add_argument("--cost", help="the program `cost`, for launches from C")
    parser.add_argument("--results", type=Path, default=Path("agent.json"))
    parser.add_argument("--backend", choices=["torch", "driver"], default="torch")
    parser.add_argument("--count", type=int, default=280, help="allocations")
    parser.add_argument("--mib", type=int, default=128, help="the size of each")
    parser.add_argument("--turns", type=int, default=20, help="idle turns")
    parser.add_argument(
        "--pairs", type=int, default=10, help="pairs of runs, without and with the agent"
    )
    parser.add_argument("--only-loops", action="store_true", help="no sleep and wake")
    parser.add_argument("--loops", type=int, default=10_000, help="launches in a block")
    parser.add_argument("--loop", action="append", default=[], choices=LOOPS, help="only this loop")
    parser.add_argument("--blocks", type=int, default=11, help="blocks of each loop in a run")
    parser.add_argument("--core", type=int, help="the core of the part `loops`")
    parser.add_argument("--part", choices=["all", "serve", "loops"], default="all")
    options = parser.parse_args()
    if options.part == "serve":
        return serve(options)
    if options.part == "loops":
        return loop(options)
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        found: dict[str, object] = {
            "options": {key: str(value) for key, value in vars(options).items()}
        }
        # In the first run the machine finds memory for backups, in the second it has some at hand.
        for run in [] if options.only_loops else ["first run", "warmed"]:
            print(f"{run}:", flush=True)
            found[run] = sleep_and_wake(options, failures)
        if options.turns:
            found["idle"] = idle_turns(options, failures)
        found["loops"] = pairs(options)
        for threads in ["1", "8"] if options.cost else []:
            found[f"c_launches_{threads}"] = launches_from_c(options.cost, threads)
        found["failures"] = failures
        options.results.write_text(json.dumps(found, indent=1) + "\n")
    for failure in failures:
        print(f"failed: {failure}")
    return sys.exit(bool(failures))


main()
