"""Measures what the agent costs a program that is awake: loops without and with it, and launches from C.

    python3 loops.py --cost ./cost --results loops.json

`LOWTIDE_AGENT_LIBRARY` names the agent. `--backend driver` needs no torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from backends import BACKENDS
from command_line import LIMIT_S, Told, end, parser_of

LOOPS = ["launches", "allocations", "replays", "trims"]


def loop(options: argparse.Namespace) -> None:
    """Runs the loop that each line of standard input names, and answers with the seconds of one turn."""
    memory = BACKENDS[options.backend]()
    for name in options.loop or LOOPS:
        getattr(memory, name)(options.loops // 10)
    os.sched_setaffinity(0, {options.core})
    for line in sys.stdin:
        print(getattr(memory, line.strip())(options.loops), flush=True)


def itself(options: argparse.Namespace) -> list[str]:
    chosen = [word for name in options.loop for word in ("--loop", name)]
    same = ["--backend", options.backend, "--loops", str(options.loops), *chosen]
    return [sys.executable, __file__, *same]


def pair(options: argparse.Namespace, number: int) -> dict[str, list[tuple[float, float]]]:
    """Runs the loops without and with the agent: two processes on one core, a block of each in turn.

    A process of its own is up to a third faster or slower than the next one on a shared machine. Blocks that follow
    each other at once see the same machine.
    """
    agent, command = os.environ["LOWTIDE_AGENT_LIBRARY"], itself(options)
    cores = sorted(os.sched_getaffinity(0))
    core = cores[number % len(cores)]
    command += ["--core", str(core)]
    preloads = [{}, {"LD_PRELOAD": agent}]
    both = [Told(command, {**os.environ, **preload}) for preload in preloads]
    blocks: dict[str, list[tuple[float, float]]] = {}
    for name in options.loop or LOOPS:
        for block in range(options.blocks):
            # Each is first in every second block.
            order = both if block % 2 == 0 else both[::-1]
            took = {process: float(process.tell(name)) for process in order}
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
        medians = [[*map(statistics.median, zip(*run[name], strict=True))] for run in runs]
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
    parser = parser_of(__doc__)
    parser.add_argument("--cost", help="the program `cost`, for launches from C")
    parser.add_argument("--results", type=Path, default=Path("loops.json"))
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes")
    parser.add_argument("--loops", type=int, default=10_000, help="launches in a block")
    parser.add_argument("--loop", action="append", default=[], choices=LOOPS, help="only this loop")
    parser.add_argument("--blocks", type=int, default=11, help="blocks of each loop in a run")
    parser.add_argument("--core", type=int, help="run the loops that standard input names, on this core")
    options = parser.parse_args()
    if options.core is not None:
        return loop(options)
    found: dict[str, object] = {"loops": pairs(options)}
    for threads in ["1", "8"] if options.cost else []:
        found[f"c_launches_{threads}"] = launches_from_c(options.cost, threads)
    return end([], options.results, found)


main()
