"""A day's worth of turns in minutes, scraped by a real Prometheus: do its sums agree with the receipts?

    python3 bench/metrics_day.py --built target/debug --prometheus PROGRAM [--turns 2160]

Needs the driver's double, so debug builds of the command, the agent, the helper and `lowtide-testing`, and Prometheus
(`apt-get download prometheus; dpkg -x prometheus_*.deb .`). Three programs fall asleep and wake as fast as they can: a day
has 2,160 turns of 40 s. Every hundredth turn one is killed and another one begins, and the process that gives the numbers
is killed twice. Then each counter that Prometheus has is compared with what receipts and answers said, and every query
of the dashboard is run. Prints JSON, and exits 0 only if all agree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "crates/lowtide-agent/tests/agent/client.py"
BYTES = 8 << 20
PROGRAMS = 3


class Machine:
    """A machine of its own: the double for a driver, a folder for running programs."""

    def __init__(self, built: Path, folder: Path) -> None:
        self.built, self.folder = built, folder
        double = found(built, "liblowtide_testing.so")
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(double, folder / name)
        (folder / "run").mkdir()
        self.variables = os.environ | {
            "LD_LIBRARY_PATH": str(folder),
            "LOWTIDE_DOUBLE_STATE": str(folder / "state"),
            "LOWTIDE_NVML_LIBRARY": str(folder / "libnvidia-ml.so.1"),
            "LOWTIDE_AGENT_LIBRARY": str(found(built, "liblowtide_agent.so")),
            "XDG_RUNTIME_DIR": str(folder / "run"),
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(
            [str(self.built / "lowtide"), *words], env=self.variables, text=True, **pipes
        )


def found(built: Path, name: str) -> Path:
    return next(path for path in (built / name, built / "deps" / name) if path.exists())


class Program:
    """A program under the agent, which is asked over its socket."""

    def __init__(self, machine: Machine) -> None:
        self.process = machine.start("run", "--", sys.executable, str(CLIENT))
        self.tell("start")
        self.tell(f"alloc 0 {BYTES}")
        space = "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
        self.socket = machine.folder / f"run/lowtide/agent-{space}-{self.process.pid}"

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if (answer := self.process.stdout.readline().strip()) != "ok":
            raise SystemExit(f"{line}: {answer!r}")

    def ask(self, verb: str) -> dict:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(60)
            stream.connect(str(self.socket))
            stream.sendall(json.dumps({"version": 1, "ask": verb}).encode() + b"\n")
            return json.loads(stream.makefile().readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Told:
    """What receipts and answers said."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sums: Counter[str] = Counter()

    def add(self, answer: dict) -> None:
        with self.lock:
            for receipt in answer.get("receipts", []):
                self.sums[f'lowtide_releases_total{{verdict="{receipt["verdict"]}"}}'] += 1
                self.sums["lowtide_freed_bytes_total"] += max(0, receipt["freed_bytes"] or 0)
                self.time("release", receipt["took_s"])
                for rung in receipt["rungs"]:
                    if (rung["rung"], rung["outcome"]) == ("sleep", "done"):
                        self.time("sleep", rung["took_s"])
            if answer["answer"] == "woken":
                self.sums["lowtide_woken_bytes_total"] += answer["bytes"]
                self.time("wake", answer["took_s"])

    def time(self, act: str, took_s: float) -> None:
        self.sums[f"lowtide_{act}_duration_seconds_count"] += 1
        self.sums[f"lowtide_{act}_duration_seconds_sum"] += took_s


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--built", type=Path, default=ROOT / "target/debug")
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--turns", type=int, default=2160)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = day(options, Path(folder))
    print(json.dumps({"seed": options.seed, **result}, indent=1))
    return int(bool(result["differences"] or result["empty_queries"] or result["failed_queries"]))


def day(options: argparse.Namespace, folder: Path) -> dict:
    machine, told, began = Machine(options.built.resolve(), folder), Told(), time.monotonic()
    numbers, asked = free_port(), free_port()
    serving = machine.start("metrics", "--listen", f"127.0.0.1:{numbers}")
    config = folder / "prometheus.yml"
    target = f"    static_configs: [{{targets: ['127.0.0.1:{numbers}']}}]"
    config.write_text(
        f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n  - job_name: lowtide\n{target}\n"
    )
    words = [
        options.prometheus,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        scraping = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{asked}"], stdout=log, stderr=log
        )
    killed = threading.Event()
    try:
        shares = [options.turns // PROGRAMS] * PROGRAMS
        threads = [
            threading.Thread(
                target=turns, args=(machine, told, share, random.Random(options.seed + number))
            )
            for number, share in enumerate(shares)
        ]
        for thread in threads:
            thread.start()
        # Nothing is lost while nobody reads.
        for _ in range(2):
            killed.wait(10)
            serving.kill()
            serving.wait()
            killed.wait(3)
            serving = machine.start("metrics", "--listen", f"127.0.0.1:{numbers}")
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - began
        # Prometheus reads until its numbers are those of the last turn.
        differences = {}
        for _ in range(20):
            time.sleep(1)
            found = counters(asked)
            differences = {
                name: [found.get(name), value]
                for name, value in told.sums.items()
                if abs(found.get(name, -1) - value) > 1e-9 * options.turns + 1e-9
            }
            if not differences:
                break
        queries = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
        answers = {query: ask(asked, query) for query in queries}
        samples = ask(asked, 'count_over_time(lowtide_releases_total{verdict="released"}[1d])')
        return {
            "turns": options.turns,
            "took_s": round(took_s, 1),
            "scrapes": int(samples["data"]["result"][0]["value"][1]),
            "sums": {name: round(value, 6) for name, value in sorted(told.sums.items())},
            "differences": differences,
            "queries": len(queries),
            "failed_queries": [
                query for query, answer in answers.items() if answer["status"] != "success"
            ],
            "empty_queries": [
                query for query, answer in answers.items() if not answer["data"]["result"]
            ],
        }
    finally:
        for process in (serving, scraping):
            process.kill()
            process.wait()


def turns(machine: Machine, told: Told, count: int, dice: random.Random) -> None:
    program = Program(machine)
    for _ in range(count // 2):
        told.add(program.ask("sleep"))
        told.add(program.ask("wake"))
        if dice.random() < 0.02:
            program.kill()
            program = Program(machine)
    program.tell("check 0")
    program.kill()


def dashboard() -> dict:
    return json.loads((ROOT / "packaging/dashboard.json").read_text())


def ask(port: int, query: str) -> dict:
    at = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(at, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def counters(port: int) -> dict[str, float]:
    """Returns what Prometheus has of our counters, by name and the one label that they may have."""
    found = {}
    for sample in ask(port, '{__name__=~"lowtide_.*(_total|_sum|_count)"}')["data"]["result"]:
        labels = sample["metric"]
        label = f'{{verdict="{labels["verdict"]}"}}' if "verdict" in labels else ""
        found[labels["__name__"] + label] = float(sample["value"][1])
    return found


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
