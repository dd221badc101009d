"""Runs four tools on the zoo's programs. Prints a Markdown table, and writes the figures as JSON.

    python bench/compare_zoo.py [--json FILE] [--only NAME ...] [--tools NAME ...] [--device cpu|cuda]

The figures are written as they come, and what is in FILE already is not measured again: to go on
where it was stopped, call it again.

For each program of `tests/zoo/` and each tool, in a process of its own: is the holder *named*, is
the memory *freed*, and how long did the tool take? In host memory the processes are forks of one that
has imported torch.

| tool | what is done | named |
|---|---|---|
| gc | `gc.collect()`, then `torch.cuda.empty_cache()` | it names nothing |
| objgraph | the largest tensors it sees, `find_backref_chain` | passes the holder |
| snapshot | `_record_memory_history`, `_snapshot` (GPU) | its stack says the holder's name |
| lowtide | `why()`, then the call that the program's file says | its text says the holder's name |

"Freed" is judged outside the tools: torch's storage is gone, and the kernel's (or the driver's)
number fell. objgraph and the snapshot free nothing and do not claim to. Where lowtide's call
rightly says `pinned`, it says what was freed by its own first cut, or by a second call; `by hand`
where only the program's code can, which is not counted as freed. The rules in full are in
`tests/zoo/modes.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
TOOLS = ("gc", "objgraph", "snapshot", "lowtide")
Rows = dict[str, dict[str, dict[str, Any]]]


def missing(tool: str, device: str) -> str:
    """Why a tool cannot be measured here; empty: it can."""
    spec = find_spec(tool)
    if tool in ("objgraph", "lowtide") and (spec is None or spec.origin is None):
        return f"{tool} is not installed"
    if tool == "snapshot" and device == "cpu":
        return "needs a GPU"
    return ""


def measure(rows: Rows, tools: list[str], jobs: int, keep: Callable[[], None]) -> None:
    """Every program with every tool that is not in its row yet, `jobs` at a time: memory is counted by
    process, so they disturb one another only in their seconds."""
    from zoo import runs

    writing = Lock()
    is_warm = runs.DEVICE == "cpu" and jobs == 1 and hasattr(os, "fork")
    warm = runs.Warm() if is_warm else None
    run = runs.run if warm is None else warm.run

    def look(name: str, tool: str) -> None:
        if tool in rows[name]:
            return
        result, told = run(name, tool)
        with writing:
            rows[name][tool] = result
            keep()
        print(f"{name} {tool}: {result.get('seconds', '?')} s", file=sys.stderr, flush=True)
        if result.get("problems") or "freed" not in result:
            print(told, file=sys.stderr)

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        looks = [pool.submit(look, name, tool) for name in rows for tool in tools]
        for one in looks:
            one.result()
    if warm is not None:
        warm.close()


def cell(result: dict[str, Any]) -> str:
    """One tool on one program: what it named, what it freed, how long it took."""
    if "freed" not in result:
        return "broke"
    named = "named" if result["named"] else "–"
    freed = "freed" if result["freed"] else "–"
    if result["mode"] == "lowtide" and result["freed"]:
        if result["by_hand"]:
            freed = f"{result['verdict']}, the rest by hand"
        elif result["verdict"] != "released":
            freed = f"{result['verdict']}, then freed"
    if result["freed"] is None:
        return f"{named} ({result['seconds']:.2f} s)"
    return f"{named}, {freed} ({result['seconds']:.2f} s)"


def table(rows: Rows, tools: list[str]) -> str:
    """The Markdown table, with the sums in its last line."""
    lines = ["| program | " + " | ".join(tools) + " |", "|---" * (len(tools) + 1) + "|"]
    for name, row in rows.items():
        cells = [cell(row[tool]) if tool in row else "" for tool in tools]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |")
    sums = []
    for tool in tools:
        results = [row[tool] for row in rows.values() if tool in row]
        named = sum(bool(result.get("named")) for result in results)
        freed = sum(bool(result.get("freed")) and not result.get("by_hand") for result in results)
        sums.append(f"**{named} named, {freed} freed of {len(results)}**")
    lines.append("| **all** | " + " | ".join(sums) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measures, prints the table, writes the figures."""
    parser = argparse.ArgumentParser(description="The zoo, looked at with four tools.")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--only", nargs="+", help="these programs alone")
    parser.add_argument(
        "--tools", nargs="+", choices=TOOLS, default=TOOLS, help="these tools alone"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many programs at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    os.environ["ZOO_DEVICE"] = asked.device
    sys.path.insert(0, str(TESTS))

    import torch
    from zoo import runs

    cases = runs.cases()
    able = [name for name in asked.only or cases if not runs.why_not(cases[name])]
    left_out = {tool: missing(tool, asked.device) for tool in TOOLS}
    tools = [tool for tool in asked.tools if not left_out[tool]]
    is_gpu = asked.device == "cuda"
    machine = torch.cuda.get_device_name() if is_gpu else f"{os.cpu_count()} cores"
    where = {
        "device": asked.device,
        "machine": machine,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    rows: Rows = {name: {} for name in able}
    if asked.json and asked.json.exists():
        before = json.loads(asked.json.read_text())
        if before["where"] != where:
            raise SystemExit(
                f"{asked.json} was measured elsewhere: {before['where']}. Name another"
            )
        rows |= before["programs"]

    def keep() -> None:
        if asked.json:
            figures = {"where": where, "left_out": left_out, "programs": rows}
            # In one go: a file that is cut short could not be gone on with.
            part = asked.json.with_suffix(".part")
            part.write_text(json.dumps(figures, indent=1) + "\n")
            part.replace(asked.json)

    measure(rows, tools, asked.jobs, keep)
    shown = [tool for tool in TOOLS if any(tool in row for row in rows.values())]
    print(table(rows, shown))
    print("\n" + ", ".join(f"{key} {value}" for key, value in where.items()) + ".")
    for tool, reason in left_out.items():
        if reason:
            print(f"Without {tool}: {reason}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
