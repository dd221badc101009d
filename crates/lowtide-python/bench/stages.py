"""Six Hugging Face models one after another: is the peak the largest of them, or their sum?

    python bench/stages.py [--device cuda:0|cpu] [--tiny] [--scale 1.0] [--json FILE]

| way | what it does, in a process of its own |
|---|---|
| stage | each model in `with lowtide.stage(…)`, all variables left as they are |
| del | the same loop, each model deleted at the end of its turn, and no more |
| alone | each model in a process that has nothing else |
| floor | a context on the device after one product of two small matrices |

Memory is what the driver says (NVML; the kernel for the host's memory), read from outside every two
milliseconds and at the end of each turn, above what was there before the process. The bar:

    peak(stage) ≤ floor + 1.03 × (largest peak alone − floor), and every receipt says `released`

On the host there is a second floor, with a stage that has nothing in it: our own look at the heap
takes of the very memory that is measured there. The exit status is 0 where the bar held, 1 where it
did not, 2 where it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stages_meter import Nvml, Sampler, resident, settled

CHILD = Path(__file__).resolve().parent / "stages_child.py"
MODELS = 6
WITHIN = 1.03
NOISE_BYTES = 16 << 20
"""On the host the C library and Python's own heap breathe by so much from one process to the next."""
Told = dict[str, Any]


class Bench:
    """Runs ways, one at a time, and measures them."""

    def __init__(self, run: Told) -> None:
        self.run = run
        self.is_host = run["device"] == "cpu"
        self.where: Told = {}
        self._server: subprocess.Popen[str] | None = None
        self._read: Callable[[int], int] = resident
        self._first = 0
        if self.is_host:
            # Imported once, and forked for each way.
            self._server = self._start("serve")
        else:
            nvml = Nvml(self._uuid())
            self.where = nvml.where()
            self._read = nvml.in_use
            time.sleep(1.0)  # The process that told the UUID had a context; the driver ends it.
            self._first = nvml.in_use()

    def _start(self, way: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(CHILD), way, json.dumps(self.run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def _uuid(self) -> str:
        process = self._start("uuid")
        assert process.stdout is not None
        line = process.stdout.readline()
        process.communicate("\n")
        if not line:
            raise OSError(f"torch sees no {self.run['device']}: try --device cpu --tiny")
        return str(json.loads(line)["uuid"])

    def measure(self, way: str) -> Told:
        """One way: its peak, the peak of each turn, what was left after each, what it told."""
        before = 0 if self.is_host else settled(self._read, self._first)
        began = time.perf_counter()
        process = self._server or self._start(way)
        assert process.stdin is not None and process.stdout is not None
        if self._server is not None:
            process.stdin.write(f"{way}\n")
        sampler: Sampler | None = None
        said: Told = {}
        ended: Told = {}
        left: list[int] = []
        for line in process.stdout:
            said = json.loads(line)
            if said["at"] == "gone":
                break
            if sampler is None:
                sampler = Sampler(self._read, said["process"], before)
            now = sampler.next_part(said["at"])
            if said["at"] == "after":
                left.append(now)
            if said["at"] == "end":
                ended = said
                sampler.end()
            process.stdin.write("\n")
        if sampler is not None:
            sampler.end()
        if self._server is None:
            process.communicate()
        status = said["status"] if self._server is not None else process.returncode
        if sampler is None or status != 0 or not ended:
            raise OSError(f"{way}: the process ended with {status}, see above")
        measured = {
            "peak_bytes": max(sampler.peaks.values()),
            "peaks": sampler.peaks,
            "left_bytes": left,
            "reserved_bytes": ended["reserved_bytes"],
            "before_bytes": before,
            "samples": sampler.samples,
            "took_s": time.perf_counter() - began,
            "told": ended["told"],
        }
        print(
            f"{way}: {mib(measured['peak_bytes'])} MiB, {measured['took_s']:.1f} s", file=sys.stderr
        )
        return measured

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate()


def mib(size: float | None) -> str:
    return "–" if size is None else f"{size / (1 << 20):,.0f}"


def judge(ways: dict[str, Told], is_host: bool) -> Told:
    """The bar, and the numbers that it is made of."""
    alone = {way: ways[way]["peak_bytes"] for way in ways if way.startswith("alone")}
    largest, summed = max(alone.values()), sum(alone.values())
    bare = ways["floor"]["peaks"]["floor"]
    # A GPU's floor is one number; on the host the look at the heap comes on top of it.
    floor = max(bare, ways["floor"]["peaks"].get("look", 0))
    limit = floor + WITHIN * (largest - bare) + (NOISE_BYTES if is_host else 0)
    peak = ways["stage"]["peak_bytes"]
    verdicts = [one["verdict"] for one in ways["stage"]["told"]]
    return {
        "floor_bytes": bare,
        "floor_with_look_bytes": floor,
        "largest_alone_bytes": largest,
        "sum_alone_bytes": summed - (len(alone) - 1) * bare,
        "limit_bytes": limit,
        "limit_with_the_floor_twice_bytes": WITHIN * largest + floor,
        "peak_bytes": peak,
        "ratio": (peak - floor) / (largest - bare),
        "ratio_del": (ways["del"]["peak_bytes"] - bare) / (largest - bare),
        "peak_held": peak <= limit,
        "verdicts": verdicts,
        "receipts_held": set(verdicts) == {"released"},
        "same_results": same_results(ways),
        "held": peak <= limit and set(verdicts) == {"released"},
    }


def same_results(ways: dict[str, Told]) -> bool:
    """Whether the models said the same in every way: the seeds are the same."""
    results: dict[str, list[float]] = {}
    for way in ways.values():
        for one in way["told"]:
            results.setdefault(one["name"], []).append(one["result"])
    return all(
        math.isclose(one, found[0], rel_tol=1e-2, abs_tol=1e-2)
        for found in results.values()
        for one in found
    )


def cleaning(way: Told) -> tuple[float, float]:
    """Seconds spent on giving back, and their share of the whole."""
    cleaned = sum(one["clean_s"] for one in way["told"])
    whole = cleaned + sum(one["work_s"] for one in way["told"])
    return cleaned, cleaned / whole if whole else 0.0


def table(ways: dict[str, Told], judged: Told) -> str:
    """Two tables: the ways, and the turns."""
    bare, largest = judged["floor_bytes"], judged["largest_alone_bytes"]
    lines = [
        "| way | peak, MiB | torch reserved at most, MiB | times the largest alone | cleaning | receipts |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name in ("stage", "del"):
        way = ways[name]
        spent, share = cleaning(way)
        floor = judged["floor_with_look_bytes"] if name == "stage" else bare
        ratio = (way["peak_bytes"] - floor) / (largest - bare)
        said = [one["verdict"] for one in way["told"] if "verdict" in one]
        verdicts = ", ".join(f"{said.count(one)} {one}" for one in sorted(set(said))) or "–"
        lines.append(
            f"| {name} | {mib(way['peak_bytes'])} | {mib(way['reserved_bytes'])} | {ratio:.3f}"
            f" | {spent:.2f} s ({share:.1%}) | {verdicts} |"
        )
    reserved = [ways[way]["reserved_bytes"] or 0 for way in ways if way.startswith("alone")]
    most, every = (max(reserved), sum(reserved)) if any(reserved) else (None, None)
    ratio = (judged["sum_alone_bytes"] - bare) / (largest - bare)
    lines += [
        f"| largest alone | {mib(largest)} | {mib(most)} | 1.000 | – | – |",
        f"| all alone, summed | {mib(judged['sum_alone_bytes'])} | {mib(every)} | {ratio:.3f} | – | – |",
        f"| floor | {mib(bare)} | {mib(ways['floor']['reserved_bytes'])} | – | – | – |",
        "",
        "| model | weights, MiB | alone | in its stage | after its stage | with del | after del | receipt |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for at, one in enumerate(ways["stage"]["told"]):
        name = one["name"]
        numbers = [
            one["weights_bytes"],
            ways[f"alone {at}"]["peak_bytes"],
            ways["stage"]["peaks"][name],
            ways["stage"]["left_bytes"][at],
            ways["del"]["peaks"][name],
            ways["del"]["left_bytes"][at],
        ]
        cells = " | ".join(mib(number) for number in numbers)
        lines.append(f"| {name} | {cells} | {one['verdict']}, {one['clean_s']:.2f} s |")
    return "\n".join(lines)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Six models one after another.")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, for the host's memory")
    parser.add_argument("--scale", type=float, default=1.0, help="times the layers of each model")
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args()


def main() -> int:
    """Measures, prints the tables, writes the figures, says whether the bar held."""
    asked = parsed()
    device = "cuda:0" if asked.device == "cuda" else asked.device
    for needed in ("torch", "transformers", "lowtide"):
        if installed(needed) is None:
            print(f"{needed} is not installed: pip install {needed}", file=sys.stderr)
            return 2
    run = {"device": device, "size": "tiny" if asked.tiny else "full", "seed": asked.seed}
    run |= {
        "scale": asked.scale,
        "batch": 2 if asked.tiny else 16,
        "tokens": 32 if asked.tiny else 256,
    }
    order = ["floor", *(f"alone {at}" for at in range(MODELS)), "del", "stage"]
    try:
        bench = Bench(run)
        ways = {way: bench.measure(way) for way in order}
        bench.close()
    except OSError as failure:
        print(failure, file=sys.stderr)
        return 2
    judged = judge(ways, bench.is_host)
    where = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": bench.where.get("gpu", f"{os.cpu_count()} cores, {platform.machine()}"),
        "driver": bench.where.get("driver", f"kernel {platform.release()}"),
        "python": platform.python_version(),
        **{
            name: installed(name)
            for name in ("torch", "transformers", "sentence-transformers", "lowtide")
        },
        "seed": asked.seed,
    }
    print(table(ways, judged))
    print("\n" + ", ".join(f"{key} {value}" for key, value in where.items()) + ".")
    for one in ways["stage"]["told"]:
        if one["verdict"] != "released":
            print(f"\n{one['line']}\n{one['why']}")
    print(
        f"\nThe bar: {mib(judged['peak_bytes'])} MiB of {mib(judged['limit_bytes'])} MiB at most,"
        f" receipts {'all released' if judged['receipts_held'] else 'not all released'},"
        f" results {'the same' if judged['same_results'] else 'NOT the same'} in every way:"
        f" {'held' if judged['held'] else 'NOT held'}."
    )
    if asked.json:
        figures = {"where": where, "run": run, "judged": judged, "ways": ways}
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if judged["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
