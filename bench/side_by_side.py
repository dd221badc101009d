#!/usr/bin/env python3
"""Runs lowtide and other tools ("peers") on the same work, one after another on one machine, and prints a table.

    side_by_side.py OUT [--bench PROGRAM] [--peers FOLDER] [--turns N] [--limit SECONDS]
    side_by_side.py --from OUT        prints the table of stored results

Each tool runs in its own process with a time limit. A tool that cannot run gets a row with the reason,
and the others still run. OUT/side_by_side.json contains what each tool printed, OUT/side_by_side.txt the
table. --turns is for the peers; lowtide has its own default. Ends with 1 if lowtide could not run or its
content was wrong.
"""
import argparse
import datetime
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLEEP_PEERS = ("vllm", "tms", "tms-retain")
ALLOC_PEERS = ("torch", "torch-expandable", "cuda-async")
FREE_PERCENT = 20  # of the device, besides the blocks: it decides what another size costs
MIB, GIB = 2**20, 2**30
DIGITS = {"s": 3, "MiB": 1, "ns": 0}


# ── running

def first_there(*paths):
    return next((str(p) for p in paths if p.exists()), None)


def said(*command):
    """The first line that a program prints; "unknown" if there is no such program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (done.stdout.strip().splitlines() or ["unknown"])[0] if done.returncode == 0 else "unknown"


def machine():
    commit = HERE.parent / "commit.txt"
    return {
        "gpu": said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": said(sys.executable, "-c", "import torch; print(torch.__version__)"),
        "commit": commit.read_text().strip() if commit.exists() else "unknown",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cores": os.cpu_count(),
    }


def objects(text):
    """The JSON objects in a text: one document, or one per line among other lines."""
    try:
        whole = json.loads(text)
        return [whole] if isinstance(whole, dict) else []
    except ValueError:
        pass
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [o for o in found if isinstance(o, dict)]


def run(command, limit_s):
    """Runs a program. Returns {"lines": its JSON objects, "error": the reason or None, "took_s": …}."""
    began = time.monotonic()
    out, complaint, error = "", "", None
    try:
        # In a session of its own, so that it can be ended with all its children, which may hold device memory.
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)
        try:
            out, complaint = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, complaint = child.communicate()
            error = f"not done after {limit_s} s"
    except OSError as problem:
        return refused(problem.strerror or str(problem))
    lines = objects(out)
    if error is None and child.returncode != 0:
        error = next((o["error"] for o in lines if "error" in o), None) or reason(child.returncode, complaint)
    elif error is None and not lines:
        error = "printed no JSON"
    return {"lines": lines, "error": error and error[:200], "took_s": round(time.monotonic() - began, 1)}


def reason(code, complaint):
    how = f"ended by signal {-code}" if code < 0 else f"ended with {code}"
    lines = complaint.strip().splitlines() or ["it printed nothing"]
    ours = next((n for n, line in enumerate(lines) if line.startswith(("lowtide: ", "lowtide-bench: "))), None)
    if ours is not None:  # lowtide wraps its message
        return f"{how}: {' '.join(line.strip() for line in lines[ours:])}"
    # Rust programs report an error in their first lines, Python in its last.
    return f"{how}: {next((line for line in lines if line.startswith('error')), lines[-1])}"


def refused(why):
    return {"lines": [], "error": why, "took_s": 0.0}


def run_all(out, bench, peers, turns, limit_s):
    results = {"machine": machine()}
    for group, names in (("ours", ("sleep", "alloc")), ("sleep_peers", SLEEP_PEERS), ("alloc_peers", ALLOC_PEERS)):
        results[group] = {name: refused("not run") for name in names}
    work = out / "alloc_work.csv"
    work.unlink(missing_ok=True)  # an old file describes other work

    def step(group, name, command):
        """Runs a command, or notes why there is none. Stores all results so far, in case this process is ended."""
        print(f"── {group} {name}", file=sys.stderr, flush=True)
        result = refused(command) if isinstance(command, str) else run(command, limit_s)
        print(f"── {group} {name}: {result['error'] or 'done'}, {result['took_s']} s", file=sys.stderr, flush=True)
        results[group][name] = result
        (out / "side_by_side.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        (out / "side_by_side.txt").write_text(table(results))

    def ours(*arguments):
        return [bench, *arguments] if bench else "no program lowtide-bench found; name one with --bench"

    device = ("--device", "cuda:0", "--json")
    step("ours", "sleep", ours("sleep", *device))
    step("ours", "alloc", ours("alloc", *device, "--free", str(FREE_PERCENT), "--work", str(work)))
    for peer in SLEEP_PEERS:
        script = [sys.executable, str(HERE / "peer_sleep.py"), str(peers), peer, "--turns", str(turns)]
        absent = "its packages are missing; `cargo xtask gpu-pack --peers` packs them"
        step("sleep_peers", peer, script if peers and has(peers, peer) else absent)
    with tempfile.TemporaryDirectory() as build:
        for peer in ALLOC_PEERS:
            script = [sys.executable, str(HERE / "peer_alloc.py"), str(work), peer, "--build", build]
            step("alloc_peers", peer, script if work.exists() else "no work to do: lowtide wrote none")
    return results


def has(peers, peer):
    return (Path(peers) / ("vllm" if peer == "vllm" else "torch_memory_saver")).is_dir()


# ── the table: from results to text, nothing else

def sleep_figures(result):
    """The figures of a peer: of the turns after which the content was right. Peers copy unchanged pages too."""
    turns = [line for line in result["lines"] if "turn" in line and line["right"]]
    first = [line["sleep_s"] for line in turns if line["turn"] == 0]
    later = [line["sleep_s"] for line in turns if line["turn"] > 0]
    figures = {}
    if first:
        figures["first"] = first[0]
    if turns:
        figures["wake"] = statistics.median(line["wake_s"] for line in turns)
        figures["asleep"] = statistics.median(line["device_mib_asleep"] - line["context_mib"] for line in turns)
    if later:
        figures["unchanged"] = figures["changed"] = statistics.median(later)
    return figures


def alloc_figures(result):
    return {line["mode"]: line["ns_per_pair"] for line in result["lines"] if "ns_per_pair" in line}


def our_figures(ours):
    """The figures of lowtide under the same names, and the ratios that have a target."""
    sleep = next(iter(ours["sleep"]["lines"]), {})
    alloc = next(iter(ours["alloc"]["lines"]), {})
    figures = {
        "first": sleep.get("first_sleep_s"), "unchanged": sleep.get("unchanged_sleep_s"),
        "changed": sleep.get("changed_sleep_s"), "wake": sleep.get("wake_s"),
        "changed_ratio": sleep.get("changed_ratio"), "wake_ratio": sleep.get("wake_ratio"),
        "same": alloc.get("same_ns"), "other": alloc.get("other_ns"), "right": sleep.get("right"),
    }
    if "asleep_bytes" in sleep and "context_bytes" in sleep:
        figures["asleep"] = (sleep["asleep_bytes"] - sleep["context_bytes"]) / MIB
    return {name: figure for name, figure in figures.items() if figure is not None}


# Each row: title, figure, unit, the figure that has a target, the target, the target as text.
ROWS = (
    ("first sleep", "first", "s", "first", 1.0, "1.000 s"),
    ("later sleep, unchanged", "unchanged", "s", "unchanged", 0.04, "0.040 s"),
    ("later sleep, all changed", "changed", "s", "changed_ratio", 1.08, "1.08 × raw copy"),
    ("wake, verified", "wake", "s", "wake_ratio", 1.06, "1.06 × raw copy"),
    ("asleep, above context", "asleep", "MiB", "asleep", 8, "8.0 MiB"),
    ("hit, the same size", "same", "ns", "same", 100, "100 ns"),
    ("hit, another size", "other", "ns", None, None, ""),
)


def shown(figure, unit):
    if figure is None:
        return "-"
    return f"{figure:,.{DIGITS[unit]}f} {unit}"


def bar_text(ours, key, bar, text):
    if bar is None:
        return ""
    if key not in ours:
        return f"≤ {text}"
    if key != "same" and ours.get("right") is False:
        return f"≤ {text}: MISSED, content was wrong"
    measured = f" ({ours[key]:.3f})" if key.endswith("_ratio") else ""
    return f"≤ {text}{measured}: {'met' if ours[key] <= bar else 'MISSED'}"


def table(results):
    """The results as a table."""
    ours = our_figures(results["ours"])
    peers = {peer: sleep_figures(result) for peer, result in results["sleep_peers"].items()}
    peers |= {peer: alloc_figures(result) for peer, result in results["alloc_peers"].items()}
    rows = [("figure", "tool", "value", "lowtide ÷ best peer", "target")]
    for what, name, unit, bar_key, bar, text in ROWS:
        group = results["alloc_peers"] if unit == "ns" else results["sleep_peers"]
        known = [peers[peer][name] for peer in group if name in peers[peer]]
        best = min(known, default=None)
        ratio = f"{ours[name] / best:.3f}" if name in ours and best is not None and best > 0 else "-"
        rows.append((what, "lowtide", shown(ours.get(name), unit), ratio, bar_text(ours, bar_key, bar, text)))
        rows.extend(("", peer, shown(peers[peer].get(name), unit), "", "") for peer in group)
    alloc = next(iter(results["ours"]["alloc"]["lines"]), {})
    for point in alloc.get("growth", []):
        rows.append((f"hit, {point['blocks']:,} blocks", "lowtide", shown(point.get("same_ns"), "ns"), "", ""))
    return "\n".join(heading(results) + [""] + aligned(rows) + remarks(results)) + "\n"


def heading(results):
    at = results["machine"]
    sleep = next(iter(results["ours"]["sleep"]["lines"]), {})
    alloc = next(iter(results["ours"]["alloc"]["lines"]), {})
    lines = ["lowtide and its peers on the same machine and the same work, one after another",
             f"{at['gpu']}, driver {at['driver']}, PyTorch {at['torch']}, {at['cores']} cores, "
             f"commit {at['commit']}, {at['date']}"]
    if "kept_bytes" in sleep:
        lines.append(f"sleep: {sleep['kept_bytes'] / GIB:.2f} GiB in {sleep['kept_blocks']} blocks kept, "
                     f"{sleep['discarded_bytes'] / GIB:.2f} GiB in {sleep['discarded_blocks']} blocks discarded; "
                     f"raw copy of the kept bytes: out {sleep['raw_out_s']:.3f} s, in {sleep['raw_in_s']:.3f} s")
    if "blocks" in alloc:
        lines.append(f"hit: one block freed and one allocated, {alloc['blocks']:,} blocks, one thread; lowtide with "
                     f"{FREE_PERCENT}% of the device free, its peers with all that their blocks leave")
    lines.append("figures are medians of the turns; the first sleep of a peer is its first turn")
    return lines


def remarks(results):
    """The tools that could not run, and those with wrong content."""
    rows = []
    groups = (("sleep", results["ours"]["sleep"], "lowtide"), ("hit", results["ours"]["alloc"], "lowtide"),
              *(("sleep", result, peer) for peer, result in results["sleep_peers"].items()),
              *(("hit", result, peer) for peer, result in results["alloc_peers"].items()))
    for what, result, who in groups:
        modes = [f"mode {line['mode']}: {line['error']}" for line in result["lines"] if {"mode", "error"} <= line.keys()]
        if result["error"]:
            some = any("error" not in line for line in result["lines"])
            rows.append((what, who, f"{'did not end well' if some else 'could not run'}: {result['error']}"))
        elif modes:
            rows.append((what, who, "could not run in " + "; ".join(modes)))
        if any(line.get("right") is False for line in result["lines"]):
            rows.append((what, who, "WRONG: other content after the wake"))
    return [""] + aligned(rows) if rows else []


def aligned(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    number = 2 if len(rows[0]) == 5 else None  # figures are aligned right, text left
    def cell(text, column):
        return text.rjust(widths[column]) if column == number else text.ljust(widths[column])
    return ["  ".join(cell(text, column) for column, text in enumerate(row)).rstrip() for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--from", dest="stored", type=Path)
    above = HERE.parent  # the pack, or the repository
    built = first_there(above / "lowtide-bench", above / "target/release/lowtide-bench")
    parser.add_argument("--bench", default=built or shutil.which("lowtide-bench"))
    parser.add_argument("--peers", default=first_there(above / "peers", above / "target/gpu-pack/peers"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--limit", type=int, default=240)
    arguments = parser.parse_args()
    if (arguments.out is None) == (arguments.stored is None):
        parser.error("name the folder for the results, or --from with one that has them")
    if arguments.stored is not None:
        results = json.loads((arguments.stored / "side_by_side.json").read_text())
    else:
        arguments.out.mkdir(parents=True, exist_ok=True)
        results = run_all(arguments.out, arguments.bench, arguments.peers, arguments.turns, arguments.limit)
    print(table(results), end="")
    wrong = our_figures(results["ours"]).get("right") is False
    sys.exit(1 if wrong or any(result["error"] for result in results["ours"].values()) else 0)


if __name__ == "__main__":
    main()
