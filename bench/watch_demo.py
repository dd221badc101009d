#!/usr/bin/env python3
"""Watches `lowtide demo` from outside, and says whether what was seen agrees with what it says.

    watch_demo.py [--lowtide PROGRAM] [--device DEVICE] [--hold MS] [--out FILE] [-- MORE OPTIONS OF THE DEMO]

The demo stays in each state for --hold milliseconds and tells in its JSON from when to when. Meanwhile
this process asks somebody else what the demo's process holds: on a GPU NVML (as nvidia-smi does), on
`host` the kernel, through `lowtide ps --json`. Every look that lies within a state must show just what
the demo said of it, every state must have been looked at, and nothing larger than a peak may be seen.
Where the driver does not tell whose memory it is, what is in use more than before the demo began counts.
--out keeps the demo's JSON and every look. Ends with 0 where all agrees and the demo proved its acts.
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
# Two readers of one driver see the same; a context may grow by a page between two looks.
TOLERANCE = {"host": 0, "cuda": 2 * MIB}
MOST_SECONDS = 300


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t"""
    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t"""
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


class Nvml:
    """What NVML says is in use on one GPU."""

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
        """What a process holds; None where it is not listed, or its memory is not told."""
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

    def look(self, pid):
        return {"own": self.of(pid), "everybody": self.everybody()}


class Kernel:
    """What the kernel says a process has of `host` devices."""

    def __init__(self, lowtide):
        self.lowtide = lowtide

    def look(self, pid):
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
    """Who is asked about a device, and which one that is: the first GPU, or host, if not given."""
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
    """Runs the demo: what it printed, how it ended, every look, and what was in use before it."""
    before = asked.look(0)["everybody"]
    # Its output goes to a file: a pipe that nobody reads while looking would stop it.
    with tempfile.TemporaryFile() as out:
        demo = subprocess.Popen(command, stdout=out)
        looks, until = [], time.time() + MOST_SECONDS
        try:
            while demo.poll() is None:
                if time.time() > until:
                    sys.exit(f"watch_demo: not done after {MOST_SECONDS} s")
                from_s = time.time()
                look = asked.look(demo.pid)
                looks.append({"from_s": from_s, "until_s": time.time(), **look})
                time.sleep(0.005)
        finally:
            demo.kill()
            demo.wait()
        out.seek(0)
        return out.read().decode(), demo.returncode, looks, before


def numbers(answer, looks, before):
    """Each look's time and the number that the demo's are of."""
    own = answer["counts"] == "own" and any(look["own"] is not None for look in looks)
    for look in looks:
        if own:
            seen = look["own"]
        elif answer["counts"] == "own":
            seen = max(0, look["everybody"] - before)
        else:
            seen = look["everybody"]
        if seen is not None:
            yield look["from_s"], look["until_s"], seen


def disagreements(answer, seen, tolerance):
    """Prints a row for each state; yields what does not agree."""
    print(f"{'act':<14} {'way':<8} {'state':<8} {'demo says':>15} {'seen from outside':>27} {'looks':>6}")
    for act in answer["acts"]:
        for state in act["states"]:
            inside = [bytes_ for from_s, until_s, bytes_ in seen
                      if from_s >= state["from_s"] and until_s <= state["until_s"]]
            where = f"{act['name']}, {state['way']}, {state['name']}"
            low, high = min(inside, default=0), max(inside, default=0)
            shown = "-" if not inside else mib(low) if low == high else f"{mib(low)}–{mib(high)}"
            print(f"{act['name']:<14} {state['way']:<8} {state['name']:<8} {mib(state['bytes']):>15} {shown:>27} {len(inside):>6}")
            if not inside:
                yield f"{where}: nobody looked; a longer --hold helps"
            elif max(abs(low - state["bytes"]), abs(high - state["bytes"])) > tolerance:
                yield f"{where}: the demo says {state['bytes']}, seen {low} to {high}"
        for way, peak in (("today", act["today"]["peak_bytes"]), ("lowtide", act["peak_bytes"])):
            states = [state for state in act["states"] if state["way"] == way]
            from_s, until_s = states[0]["from_s"], states[-1]["until_s"]
            most = max((b for begin, end, b in seen if begin >= from_s and end <= until_s), default=0)
            if most > peak + tolerance:
                yield f"{act['name']}, {way}: {most} seen, more than the peak, {peak}"
    peak = max(max(act["peak_bytes"], act["today"]["peak_bytes"]) for act in answer["acts"])
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
    text, code, looks, before = watch(command, asked)
    if code not in (0, 1):
        sys.exit(f"watch_demo: the demo ended with {code}")
    answer = json.loads(text)
    if options.out:
        options.out.write_text(json.dumps({"demo": answer, "looks": looks, "before_bytes": before}, indent=1) + "\n")
    seen = list(numbers(answer, looks, before))
    wrong = list(disagreements(answer, seen, TOLERANCE[device.partition(":")[0]]))
    if code == 1:
        wrong.append("the demo did not prove all of its acts")
    for what in wrong:
        print(f"DISAGREES {what}")
    took = answer["took_s"]
    print(f"{device}: {len(seen)} looks in {took:.1f} s; {'they do not agree' if wrong else 'all agree with the demo'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
