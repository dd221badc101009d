"""Measures the agent with a program that nobody changed: sleep, wake, and idle turns.

    python3 agent.py --lowtide ./lowtide --results agent.json

It starts itself under `lowtide run` (the part `serve`), fills the device with random bytes, captures a graph, puts
the program to sleep, wakes it, and looks at every byte. Then come idle turns. `--backend driver` needs no torch: it
uses the driver's functions through ctypes. Exits 0 only if all data were right and every sleep was proved.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from backends import BACKENDS, MIB
from command_line import Told, ask, end, parser_of, used

REST_S = 2


def serve(options: argparse.Namespace) -> None:
    """Does what it is told on standard input, one word a line, and answers each with JSON."""
    memory = BACKENDS[options.backend]()
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


class Program(Told):
    """The program under `lowtide run`."""

    def __init__(self, options: argparse.Namespace, *run_options: str) -> None:
        self.lowtide = options.lowtide
        super().__init__([options.lowtide, "run", *run_options, "--", *itself(options)])

    def does(self, word: str) -> dict[str, object]:
        return dict(json.loads(self.tell(word)))

    def ask(self, *words: str) -> dict[str, object]:
        """Asks the agent by the command line."""
        verb, *others = words
        began = time.perf_counter()
        answer = ask(self.lowtide, verb, self.pid, *others)
        took_s = time.perf_counter() - began
        if "error" in answer:
            raise SystemExit(f"lowtide {verb} says nothing: {answer['error']}")
        return {**answer, "command_s": took_s}

    def used(self) -> int | None:
        return used(self.lowtide, self.pid)


def itself(options: argparse.Namespace) -> list[str]:
    same = ["--backend", options.backend, "--count", str(options.count), "--mib", str(options.mib)]
    return [sys.executable, __file__, *same, "--part", "serve"]


def sleep_and_wake(options: argparse.Namespace, failures: list[str]) -> dict[str, object]:
    program = Program(options)
    program.does("ready")
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
        found[name] = program.does(word)
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
    program.does("drop")
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
    program.does("ready")
    asleep = right = 0
    for _ in range(options.turns):
        limit = time.monotonic() + 60
        while time.monotonic() < limit and not program.ask("status")["is_asleep"]:
            time.sleep(0.2)
        asleep += bool(program.ask("status")["is_asleep"])
        right += program.does("touch")["is"] is True
    used = program.used()
    program.end()
    if (asleep, right) != (options.turns, options.turns):
        failures.append(f"idle: asleep {asleep} and right {right} times of {options.turns}")
    print(f"idle: asleep {asleep}, right {right} of {options.turns}", flush=True)
    return {"turns": options.turns, "asleep": asleep, "right": right, "used_afterwards": used}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=Path("agent.json"))
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--count", type=int, default=280, help="allocations")
    parser.add_argument("--mib", type=int, default=128, help="the size of each")
    parser.add_argument("--turns", type=int, default=20, help="idle turns")
    parser.add_argument("--part", choices=["all", "serve"], default="all")
    options = parser.parse_args()
    if options.part == "serve":
        return serve(options)
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        found: dict[str, object] = {
            "options": {key: Path(str(value)).name for key, value in vars(options).items()}
        }
        # In the first run the machine finds memory for backups, in the second it has some at hand.
        for run in ["first run", "warmed"]:
            print(f"{run}:", flush=True)
            found[run] = sleep_and_wake(options, failures)
        if options.turns:
            found["idle"] = idle_turns(options, failures)
        found["failures"] = failures
    return end(failures, options.results, found)


main()
