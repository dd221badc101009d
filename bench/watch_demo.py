#!/usr/bin/env python3
"""Watches `lowtide demo` from outside, and compares what it sees with what the demo reports.

    watch_demo.py [--lowtide PROGRAM] [--device DEVICE] [--hold MS] [--out FILE] [-- MORE OPTIONS OF THE DEMO]

The demo stays in each state for --hold milliseconds and lists the states with their times in its JSON.
Meanwhile this process asks how much memory the demo's process uses: NVML on a GPU (like nvidia-smi),
the kernel on `host` (through `lowtide ps --json`). Every reading within a state must equal the number of
the demo, every state must have been read, and no reading may exceed the peak. If the driver does not
report the memory of each process, the increase since the start of the demo counts.
--out writes the demo's JSON and every reading. Ends with 0 if all agree and every scenario is proved.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 2**20
NVML_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
INSUFFICIENT_SIZE, NOT_AVAILABLE = 7, 2**64 - 1
# Two readers of one driver see the same number; a context may grow by a page between two readings.
TOLERANCE = {"host": 0, "cuda": 2 * MIB}
MOST_SECONDS = 300
# The device memory through which a sleep or a wake packs pages, while it lasts.
RING = 42 * MIB + 2 * MIB


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t"""
    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t"""
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


class Nvml:
    """The memory in use on one GPU, by NVML."""

    def __init__(self, uuid):
        self.library = nvml_library()
        self.check("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self.check("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))

    def check(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise OSError(f"{name} answered {code}")

    def everybody(self):
        memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
        self.check("nvmlDeviceGetMemoryInfo_v2", self.device, ctypes.byref(memory))
        return memory.used

    def of(self, pid):
        """The memory of a process; None if it is not listed or its memory is not reported."""
        room = 64
        while True:
            count, processes = ctypes.c_uint(room), (Process * room)()
            code = self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), processes)
            if code == 0:
                told = [p.used for p in processes[:count.value] if p.pid == pid and p.used != NOT_AVAILABLE]
                return max(told, default=None)
            if code != INSUFFICIENT_SIZE:
                raise OSError(f"nvmlDeviceGetComputeRunningProcesses_v3 answered {code}")
            room = count.value + 64

    def read(self, pid):
        return {"own": self.of(pid), "everybody": self.everybody()}


class Kernel:
    """The memory of `host` devices of a process, by the kernel."""

    def __init__(self, lowtide):
        self.lowtide = lowtide

    def read(self, pid):
        processes = ps(self.lowtide)["host"]["processes"]
        return {"own": next((p["bytes"] for p in processes if p["pid"] == pid), None), "everybody": None}


def nvml_library():
    named = os.environ.get("LOWTIDE_NVML_LIBRARY")
    failure = None
    for name in [named] if named else NVML_NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError as problem:
            failure = problem
    raise OSError(f"no NVML: {failure}")


def ps(lowtide):
    done = subprocess.run([lowtide, "ps", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def watcher(lowtide, device):
    """The source of readings for a device, and the device: by default the first GPU, or host."""
    gpus = [gpu for gpu in ps(lowtide)["devices"] if gpu["id"]]
    if device is None:
        device = gpus[0]["id"] if gpus else "host"
    if device == "host":
        return device, Kernel(lowtide)
    uuid = next((gpu["uuid"] for gpu in gpus if gpu["id"] == device), None)
    if uuid is None:
        sys.exit(f"watch_demo: NVML shows no {device}")
    return device, Nvml(uuid)


def watch(command, asked):
    """Runs the demo. Returns its output, its exit code, every reading, and the memory in use before."""
    before = asked.read(0)["everybody"]
    # The output goes to a file: a pipe that is not read meanwhile would block the demo.
    with tempfile.TemporaryFile() as out:
        demo = subprocess.Popen(command, stdout=out)
        readings, until = [], time.time() + MOST_SECONDS
        try:
            while demo.poll() is None:
                if time.time() > until:
                    sys.exit(f"watch_demo: not done after {MOST_SECONDS} s")
                from_s = time.time()
                reading = asked.read(demo.pid)
                readings.append({"from_s": from_s, "until_s": time.time(), **reading})
                time.sleep(0.005)
        finally:
            demo.kill()
            demo.wait()
        out.seek(0)
        return out.read().decode(), demo.returncode, readings, before


def numbers(answer, readings, before):
    """Yields the time of each reading and the number to compare with the demo's."""
    own = answer["counts"] == "own" and any(reading["own"] is not None for reading in readings)
    for reading in readings:
        if own:
            seen = reading["own"]
        elif answer["counts"] == "own":
            seen = max(0, reading["everybody"] - before)
        else:
            seen = reading["everybody"]
        if seen is not None:
            yield reading["from_s"], reading["until_s"], seen


def disagreements(answer, seen, tolerance):
    """Prints a row for each state; yields every disagreement."""
    print(f"{'scenario':<14} {'way':<8} {'state':<8} {'demo says':>15} {'seen from outside':>27} {'times':>6}")
    for scenario in answer["scenarios"]:
        for state in scenario["states"]:
            inside = [bytes_ for from_s, until_s, bytes_ in seen
                      if from_s >= state["from_s"] and until_s <= state["until_s"]]
            where = f"{scenario['name']}, {state['way']}, {state['name']}"
            low, high = min(inside, default=0), max(inside, default=0)
            shown = "-" if not inside else mib(low) if low == high else f"{mib(low)}–{mib(high)}"
            print(f"{scenario['name']:<14} {state['way']:<8} {state['name']:<8} {mib(state['bytes']):>15} {shown:>27} {len(inside):>6}")
            if not inside:
                yield f"{where}: not read; a longer --hold helps"
            elif max(abs(low - state["bytes"]), abs(high - state["bytes"])) > tolerance:
                yield f"{where}: the demo says {state['bytes']}, seen {low} to {high}"
        for way, peak in (("today", scenario["today"]["peak_bytes"]), ("lowtide", scenario["peak_bytes"])):
            states = [state for state in scenario["states"] if state["way"] == way]
            from_s, until_s = states[0]["from_s"], states[-1]["until_s"]
            most = max((b for begin, end, b in seen if begin >= from_s and end <= until_s), default=0)
            ring = RING if way == "lowtide" and scenario["name"] == "idle" else 0
            if most > peak + ring + tolerance:
                yield f"{scenario['name']}, {way}: {most} seen, more than the peak, {peak}"
    peak = max(max(scenario["peak_bytes"], scenario["today"]["peak_bytes"]) for scenario in answer["scenarios"])
    most = max((bytes_ for _, _, bytes_ in seen), default=0)
    print(f"\nmost ever seen {mib(most)}, largest peak {mib(peak)}")
    if most > peak + tolerance:
        yield f"{most} seen, more than any peak"


def mib(size):
    return f"{size / MIB:,.1f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = (HERE.parent / name for name in ("lowtide", "target/release/lowtide", "target/debug/lowtide"))
    parser.add_argument("--lowtide", default=next((str(path) for path in built if path.is_file()), "lowtide"))
    parser.add_argument("--device")
    parser.add_argument("--hold", type=int, default=300)
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*")
    options = parser.parse_args()

    device, asked = watcher(options.lowtide, options.device)
    command = [options.lowtide, "demo", "--json", "--device", device, "--hold", str(options.hold), *options.more]
    text, code, readings, before = watch(command, asked)
    if code not in (0, 1):
        sys.exit(f"watch_demo: the demo ended with {code}")
    answer = json.loads(text)
    if options.out:
        options.out.write_text(json.dumps({"demo": answer, "readings": readings, "before_bytes": before}, indent=1) + "\n")
    seen = list(numbers(answer, readings, before))
    wrong = list(disagreements(answer, seen, TOLERANCE[device.partition(":")[0]]))
    if code == 1:
        wrong.append("the demo did not prove every scenario")
    for what in wrong:
        print(f"DISAGREES {what}")
    took = answer["took_s"]
    print(f"{device}: {len(seen)} readings in {took:.1f} s; {'they do not agree' if wrong else 'all agree with the demo'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
