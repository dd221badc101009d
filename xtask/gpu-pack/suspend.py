"""Suspends a PyTorch program that nobody changed, and brings it back; beside it, the driver's checkpoint alone.

    python3 suspend.py --lowtide ./lowtide --results suspend.json [--turns 50]

The program has 15 GiB of weights, 20 GiB that it has freed and that PyTorch still caches, and a captured graph. It is
suspended and brought back several times. Each time the device must have 0 MiB of it meanwhile, and its weights and
the graph's result must be the same. Then the same program runs without the agent, and the driver copies all of its
memory. With `--turns N`, a program under `lowtide run --idle 1s --to suspend` works every four seconds. With `--kills N`,
a program is suspended and used N times while the helper is killed at random moments.
Exits 0 only if every result is right and the device was empty each time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from command_line import Told, ask, end, parser_of

EVERY_S = 4.0
PROGRAM = r"""
import hashlib, sys, time
import torch
GIB = 1 << 30
mode = sys.argv[1]
torch.manual_seed(16)
weights = [torch.randint(0, 1 << 62, (GIB // 8,), device="cuda") for _ in range(15 if mode == "large" else 1)]
small = torch.randn(1024, 1024, device="cuda")
static = small.clone()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    out = torch.relu(static @ small)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = torch.relu(static @ small)
graph.replay()
torch.cuda.synchronize()
if mode == "large":
    # After the capture, which empties the cache.
    cache = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    del cache
def answer():
    graph.replay()
    sums = [str(int(one.sum())) for one in weights]
    return hashlib.sha256((",".join(sums) + str(float(out.double().sum()))).encode()).hexdigest()[:16]
print(answer(), flush=True)
for line in sys.stdin:
    if line.strip() == "touch":
        began = time.perf_counter()
        int(small.view(-1)[0].item() == 0)
        print(time.perf_counter() - began, flush=True)
    elif line.strip() == "answer":
        print(answer(), flush=True)
"""


class Target(Told):
    """The program, with or without an agent."""

    def __init__(self, options: argparse.Namespace, mode: str, run: list[str] | None) -> None:
        prefix = [] if run is None else [options.lowtide, "run", *run, "--"]
        super().__init__([*prefix, sys.executable, "-c", PROGRAM, mode])
        self.options = options
        self.first = self.line()

    def lowtide(self, verb: str, *more: str) -> tuple[float, dict[str, object]]:
        """Runs a command about it; returns the seconds and the answer."""
        began = time.perf_counter()
        answer = ask(self.options.lowtide, verb, self.pid, *more)
        return time.perf_counter() - began, answer

    def used_mib(self) -> float:
        """The process's memory on the device, by NVML; 0 if it is not listed."""
        rows = device_says("--query-compute-apps=pid,used_memory")
        return sum(float(row[1]) for row in rows if len(row) > 1 and int(row[0]) == self.pid)


def device_says(question: str) -> list[list[str]]:
    command = ["nvidia-smi", question, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [row.split(",") for row in done.stdout.splitlines()]


def device_mib() -> float:
    return float(device_says("--query-gpu=memory.used")[0][0])


def with_agent(options: argparse.Namespace) -> dict[str, object]:
    target = Target(options, "large", ["--idle", "1h", "--to", "suspend"])
    turns: list[dict[str, object]] = []
    failures: list[str] = []
    awake_mib = target.used_mib()
    for turn in range(options.repeats):
        suspend_s, suspended = target.lowtide("suspend")
        asleep_mib, whole_mib = target.used_mib(), device_mib()
        touch_s = float(target.tell("touch"))
        answer = target.tell("answer")
        memory = {"suspended_mib": asleep_mib, "device_mib": whole_mib}
        turns.append({"suspend_command_s": suspend_s, "answer": suspended, **memory, "touch_s": touch_s})
        if suspended.get("answer") != "suspended":
            failures.append(f"turn {turn}: {json.dumps(suspended)[:300]}")
        if asleep_mib:
            failures.append(f"turn {turn}: {asleep_mib} MiB of it are on the device")
        if answer != target.first:
            failures.append(f"turn {turn}: {answer} instead of {target.first}")
    code = target.end()
    # The helper is still there: what the device has in use now is not the program's.
    ended_mib = device_mib()
    if any(turn["device_mib"] != ended_mib for turn in turns):
        failures.append(f"the device has {ended_mib} MiB in use without the program")
    figures = {"awake_mib": awake_mib, "turns": turns, "device_mib_afterwards": ended_mib}
    return {**figures, "exit": code, "failures": failures}


def checkpoint_alone(options: argparse.Namespace) -> dict[str, object]:
    target = Target(options, "large", None)
    suspend_s, suspended = target.lowtide("suspend", "--force")
    suspended_mib = target.used_mib()
    resume_s, resumed = target.lowtide("resume")
    answer = target.tell("answer")
    failures = [] if answer == target.first else [f"{answer} instead of {target.first}"]
    if suspended_mib:
        failures.append(f"{suspended_mib} MiB of it are on the device")
    return {
        "suspend_command_s": suspend_s,
        "resume_command_s": resume_s,
        "suspended": suspended,
        "resumed": resumed,
        "suspended_mib": suspended_mib,
        "exit": target.end(),
        "failures": failures,
    }


def idle_turns(options: argparse.Namespace) -> dict[str, object]:
    target = Target(options, "small", ["--idle", "1s", "--to", "suspend"])
    used: list[float] = []
    touches: list[float] = []
    right = 0
    for _ in range(options.turns):
        time.sleep(EVERY_S)
        used.append(target.used_mib())
        touches.append(float(target.tell("touch")))
        right += target.tell("answer") == target.first
    code = target.end()
    failures = [] if right == options.turns else [f"{right} of {options.turns} results are right"]
    if any(used):
        failures.append(f"{sum(map(bool, used))} of {options.turns} times not off the device")
    counts = {"right": right, "used_mib": used, "touch_s": touches}
    return {**counts, "exit": code, "failures": failures}


def kill_helper() -> int:
    """Kills the helper of this runtime folder; returns how many processes were killed."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            ours = os.environ.get("XDG_RUNTIME_DIR", "/") in " ".join(words[1:])
            if Path(words[0]).name == "lowtide-helper" and ours:
                os.kill(int(process.name), 9)
                killed += 1
        except OSError:
            pass
    return killed


def kills(options: argparse.Namespace) -> dict[str, object]:
    """Suspends and uses a program again and again; the helper dies during one of the two, or between them."""
    dice = random.Random(options.seed)
    target = Target(options, "small", ["--idle", "1h", "--to", "suspend"])
    killed: list[int] = []
    confirmed, failures = 0, []
    for turn in range(options.kills):
        killer = threading.Timer(dice.uniform(0, 1.2), lambda: killed.append(kill_helper()))
        killer.start()
        if target.lowtide("suspend")[1].get("answer") == "suspended":
            confirmed += 1
            if used := target.used_mib():
                failures.append(f"turn {turn}: {used} MiB of it are on the device")
        target.tell("touch")
        if (answer := target.tell("answer")) != target.first:
            failures.append(f"turn {turn}: {answer} instead of {target.first}")
            break
        killer.join()
        print(f"turn {turn}: {confirmed} suspends, {sum(killed)} killed helpers", flush=True)
    if not confirmed or not sum(killed):
        failures.append(f"{confirmed} suspends, {sum(killed)} killed helpers")
    counts = {"seed": options.seed, "confirmed": confirmed, "killed": sum(killed)}
    return {**counts, "exit": target.end(), "failures": failures}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", required=True, help="where the figures go, as JSON")
    parser.add_argument("--repeats", type=int, default=4, help="how often it is suspended")
    parser.add_argument("--turns", type=int, default=0, help="how many idle turns")
    parser.add_argument("--only-turns", action="store_true", help="nothing but the idle turns")
    parser.add_argument("--kills", type=int, default=0, help="how many turns with killed helpers")
    parser.add_argument("--seed", type=int, default=33, help="of the moments of the kills")
    options = parser.parse_args()
    options.lowtide = os.path.abspath(options.lowtide)
    result: dict[str, dict[str, object]] = {}
    if not options.only_turns:
        result["with the agent"] = with_agent(options)
        result["checkpoint alone"] = checkpoint_alone(options)
    if options.turns:
        result["idle"] = idle_turns(options)
    if options.kills:
        result["kills"] = kills(options)
    failures = [str(one) for part in result.values() for one in list(part["failures"])]  # type: ignore[call-overload]
    for name, part in result.items():
        print(name, json.dumps({key: part[key] for key in part if key != "turns"})[:600])
        for turn in part.get("turns", []):  # type: ignore[attr-defined]
            print(" ", json.dumps({**turn, "answer": None}))
    end(failures, options.results, result)


main()
