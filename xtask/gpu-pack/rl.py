"""A rollout and a trainer on one card, in two processes that alternate, as RL loops do.

    python3 rl.py --lowtide ./lowtide --results rl.json [--rounds 50] [--limit 180] [share retaining calls saver]

share: both run under `lowtide run --share`, and nobody says a word of sleep. calls: each is put to sleep before the
other's turn and woken for its own, as `lowtide.ray.Group` does. saver: the same without lowtide, by the calls of
torch_memory_saver (`pause`, `resume`), from the folder that `cargo xtask gpu-pack --peers` fills; it keeps the weights
and discards the scratch. retaining: saver with `retain_cpu_backup`. With `--backend driver` the two copy, free and
allocate by themselves instead.

In a round the rollout checks every byte that it has and uses its scratch, then the trainer checks and writes all of its
own anew. A turn lasts from the first word of it to its last result; its work begins once a byte of the weights was read
on the device, and the rest of the turn is moving, in every way alike. `--limit` is of all ways together: each leaves at
least `--least` seconds for each that follows, and tells how many rounds it was. If there is a folder `ray` beside this
file (Ray for this Python, unpacked), the two are actors of Ray, and the results say so; otherwise they are processes
with pipes. Exits 0 only if every byte was right.
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
from driver import MIB
from rl_memory import BACKENDS, SAVERS

RAY = Path(__file__).with_name("ray")
WAYS = ("share", "retaining", "calls", "saver")
WORDS = ("rollout", "train")


class Part:
    """The rollout, or the trainer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.memory, self.step = BACKENDS[options.backend](options), 0

    def tell(self, word: str) -> str:
        """Does what it is told. Returns as JSON, of a turn, whether every byte was right and how long it worked."""
        if word not in WORDS:
            getattr(self.memory, word)()
            return json.dumps({"done": word})
        self.memory.touch()
        began = time.perf_counter()
        is_right = self.memory.is_right(self.step)
        self.memory.use_scratch()
        if word == "train":
            self.step += 1
            self.memory.write(self.step)
        return json.dumps({"is_right": is_right, "work_s": time.perf_counter() - began})

    def pid(self) -> int:
        return os.getpid()


class Actor:
    """A part as an actor of Ray."""

    def __init__(self, options: argparse.Namespace) -> None:
        import ray

        self.ray, search = ray, os.pathsep.join(path for path in sys.path if path)
        run = " ".join([*under(options), sys.executable])
        env = {"py_executable": run, "env_vars": {"PYTHONPATH": search}}
        self.actor = ray.remote(Part).options(num_cpus=1, runtime_env=env).remote(options)

    def ready(self) -> None:
        self.pid = self.ray.get(self.actor.pid.remote())

    def tell(self, word: str) -> str:
        return str(self.ray.get(self.actor.tell.remote(word)))

    def end(self) -> int:
        self.kill()
        return 0

    def kill(self) -> None:
        self.ray.kill(self.actor)


class Program(Told):
    """A part as a process with pipes."""

    def __init__(self, options: argparse.Namespace) -> None:
        same = [f"--{name}={getattr(options, name)}" for name in ("backend", "weights", "scratch", "peers")]
        itself = [sys.executable, __file__, "--part", options.way, *same]
        super().__init__([*under(options), *itself])

    def ready(self) -> None:
        self.line()

    def kill(self) -> None:
        self.process.kill()


def under(options: argparse.Namespace) -> list[str]:
    """Returns what a part is started by."""
    return [] if options.way in SAVERS else [options.lowtide, "run", "--share", "--"]


def change(options: argparse.Namespace, off: Actor | Program, on: Actor | Program) -> list[float]:
    """Has one go off the card and the other come, if the way has words for it. Returns how long each took."""
    began = time.perf_counter()
    if options.way == "calls":
        ask(options.lowtide, "sleep", off.pid)
        half = time.perf_counter()
        ask(options.lowtide, "wake", on.pid)
    elif options.way in SAVERS:
        off.tell("pause")
        half = time.perf_counter()
        on.tell("resume")
    else:
        return []
    return [half - began, time.perf_counter() - half]


def loop(options: argparse.Namespace, made: type[Actor | Program], until: float) -> dict[str, Any]:
    """Has the two alternate. Returns the times of their turns."""
    began = time.perf_counter()
    parts = [made(options), made(options)]
    try:
        return alternate(options, parts, began, until)
    finally:
        for part in parts:
            part.kill()


def alternate(
    options: argparse.Namespace, parts: list[Actor | Program], began: float, until: float
) -> dict[str, Any]:
    rollout, trainer = parts
    for part in parts:
        part.ready()
    rollout.tell("load")
    if options.way in SAVERS:
        rollout.tell("pause")
    trainer.tell("load")
    start_s = time.perf_counter() - began
    rounds: list[list[dict[str, float]]] = []
    changes: list[list[float]] = []
    wrong = 0
    while len(rounds) < options.rounds and time.perf_counter() < until:
        turns = []
        for word, mine, other in zip(WORDS, (rollout, trainer), (trainer, rollout), strict=True):
            start = time.perf_counter()
            changes.append(change(options, other, mine))
            said = json.loads(mine.tell(word))
            turn_s = time.perf_counter() - start
            wrong += not said["is_right"]
            turns.append({"turn_s": turn_s, "work_s": said["work_s"], "moving_s": turn_s - said["work_s"]})
        rounds.append(turns)
    found: dict[str, Any] = {"rounds": len(rounds), "wrong": wrong, "start_s": start_s}
    codes = [trainer.end()]
    if options.way in SAVERS:
        rollout.tell("resume")
    found["codes"] = [rollout.end(), *codes]
    if rounds:
        found |= summary(rounds)
        spent = [one for one in changes if one]
        if spent:
            found["off_median_s"], found["on_median_s"] = map(statistics.median, zip(*spent, strict=True))
    return found


def summary(rounds: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Returns medians of a round and of each part's turn, and sums."""
    keys = ("turn_s", "moving_s", "work_s")
    whole = [{key: sum(turn[key] for turn in turns) for key in keys} for turns in rounds]
    found: dict[str, Any] = {"round_median": medians(whole)}
    found["sum"] = {key: sum(one[key] for one in whole) for key in keys}
    found["mean_moving_s"] = found["sum"]["moving_s"] / len(rounds)
    for at, word in enumerate(WORDS):
        found[f"{word}_median"] = medians([turns[at] for turns in rounds])
    return found


def medians(of: list[dict[str, float]]) -> dict[str, float]:
    """Returns the median of each number."""
    return {key: statistics.median(one[key] for one in of) for key in of[0]}


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Returns how much of a saver's moving the ways by lowtide need, by the median of a round."""
    moving = {
        way: found[way]["round_median"]["moving_s"] for way in WAYS if "round_median" in found.get(way, ())
    }
    ours = [way for way in moving if way not in SAVERS]
    return {
        f"{way}/{saver}": moving[way] / moving[saver] for way in ours for saver in SAVERS if saver in moving
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ways", nargs="*", default=WAYS, help=", ".join(WAYS))
    parser.add_argument("--results", type=Path, help="where to write JSON")
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds for all ways, their starts included"
    )
    parser.add_argument("--least", type=float, default=30.0, help="seconds of it that each way has at least")
    parser.add_argument("--weights", type=float, default=8.0, help="GiB that each part has and checks")
    parser.add_argument("--scratch", type=float, default=66.0, help="GiB beside them, mostly zero")
    parser.add_argument(
        "--peers", type=Path, default=Path(__file__).with_name("peers"), help="torch_memory_saver"
    )
    parser.add_argument("--part", metavar="WAY", dest="way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        part = Part(options)
        print("ready", flush=True)
        for line in sys.stdin:
            print(part.tell(line.strip()), flush=True)
        return
    until = time.perf_counter() + options.limit
    made: type[Actor | Program] = Program
    version = None
    if RAY.is_dir():
        sys.path.insert(0, str(RAY))
        # Ray starts processes of its own.
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        import ray

        ray.init(
            "local", num_cpus=4, include_dashboard=False, object_store_memory=100 * MIB, log_to_driver=False
        )
        made, version = Actor, ray.__version__
    sizes = {"weights_gib": options.weights, "scratch_gib": options.scratch, "backend": options.backend}
    found: dict[str, Any] = {"ray": version, **sizes}
    failures = []
    for at, way in enumerate(options.ways):
        options.way = way
        try:
            found[way] = loop(options, made, until - options.least * (len(options.ways) - at - 1))
        except (SystemExit, OSError) as ended:  # the others are still worth their time
            found[way] = {"error": str(ended)}
            failures.append(f"{way}: {ended}")
        else:
            is_ours = way not in SAVERS  # how the saver ends is not ours
            if found[way]["wrong"] or not found[way]["rounds"] or is_ours and any(found[way]["codes"]):
                failures.append(f"{way}: {json.dumps(found[way])}")
        print(way, json.dumps(found[way]), flush=True)
        if options.results:
            options.results.write_text(json.dumps(found, indent=1) + "\n")
    found["moving_ratios"] = ratios(found)
    print(json.dumps(found["moving_ratios"]))
    end(failures, options.results, found)


if __name__ == "__main__":
    main()
