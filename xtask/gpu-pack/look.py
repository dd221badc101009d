"""What `lowtide top` shows of three known programs under the agent: does every band have the memory that it should?

    python3 look.py --lowtide ./lowtide [--backend torch|driver] [--gib 4] [--limit-mib 64]

Three programs have so many GiB each: one is awake, one keeps half of its memory as torch's cache, one sleeps. Prints JSON
with a sample of `top`, and exits 0 only if the bands add up to the driver's number, live and cached memory are what the
programs took, and `unknown` is at most the limit. `driver` needs no framework, and has no cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from command_line import Told, ask, parser_of

MIB = 1 << 20
#: Says what it has once it has it, and then waits for the end of its input.
PROGRAMS = {
    "torch": """
import sys, torch
gib, keeps = float(sys.argv[1]), sys.argv[2] == "half"
count = round(gib * 1024 / 256)
held = [torch.ones(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]
torch.cuda.synchronize()
if keeps:
    del held[count // 2:]
print(torch.cuda.memory_reserved(), flush=True)
sys.stdin.read()
""",
    "driver": """
import sys
from driver import MIB, call, make
gib = float(sys.argv[1])
call("cuInit", 0)
context = make("cuDevicePrimaryCtxRetain", 0)
call("cuCtxSetCurrent", context)
size = round(gib * 1024) * MIB
at = make("cuMemAlloc_v2", size)
print(size if at else 0, flush=True)
sys.stdin.read()
""",
}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--backend", choices=sorted(PROGRAMS), default="torch")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--limit-mib", type=int, default=64)
    options = parser.parse_args()
    began = time.monotonic()
    programs = []
    for way in ("all", "half", "sleeps"):
        code = [sys.executable, "-c", PROGRAMS[options.backend], str(options.gib), way]
        programs.append(Told([options.lowtide, "run", "--", *code]))
    taken = [int(program.line("its memory")) for program in programs]
    slept = ask(options.lowtide, "sleep", programs[2].pid)
    sample = look(options.lowtide)
    own = {program["pid"]: program for program in sample["programs"]}
    states = [own.get(program.pid, {}).get("state") for program in programs]
    device = next(one for one in sample["devices"] if one["id"] == "cuda:0")
    bands = device["bands"]
    in_use = device["total_bytes"] - device["free_bytes"]
    checks = {
        "adds_up": sum(bands.values()) == in_use,
        "states": states == ["awake", "awake", "asleep"],
        # Small allocations stay where they are; torch's segments are the agent's live memory, its cache included.
        "live_and_cached": abs(bands["live"] + bands["cached"] - sum(taken[:2]))
        <= options.limit_mib * MIB,
        "unknown": abs(bands["unknown"]) <= options.limit_mib * MIB,
    }
    for program in programs:
        assert program.process.stdin is not None
        program.process.stdin.close()
        program.process.wait(20)
    result = {
        "checks": checks,
        "bands_mib": {band: round(size / MIB, 1) for band, size in bands.items()},
        "in_use_mib": round(in_use / MIB, 1),
        "taken_mib": [round(size / MIB, 1) for size in taken],
        "sleep": slept.get("answer"),
        "took_s": round(time.monotonic() - began, 1),
        "sample": sample,
    }
    print(json.dumps(result, indent=1))
    return 0 if all(checks.values()) else 1


def look(lowtide: str) -> dict[str, object]:
    done = subprocess.run(
        [lowtide, "top", "--once", "--json"], capture_output=True, text=True, timeout=30, check=True
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
