"""A program with torch on a real GPU is asked from outside: `lowtide why PID`.

    python3 why.py --lowtide ./lowtide --package FOLDER/lowtide > why.json

First through its agent (`lowtide run`), with a cut; then, where there is gdb, one without preparation (`--inject`).
Prints JSON. Exits 0 only if the answers name the holder and the cut frees its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = """
import torch
held = {"cache": torch.zeros(1 << 28, dtype=torch.uint8, device="cuda"), "model": torch.nn.Linear(4096, 4096).cuda()}
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    held["model"](torch.zeros(4096, device="cuda")).sum().item()
"""
LIMIT_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lowtide", default="./lowtide")
    parser.add_argument("--package", help="the folder of the installed package")
    options = parser.parse_args()
    package = options.package or str(Path(__import__("lowtide").__file__).parent)
    environment = {**os.environ, "LOWTIDE_PACKAGE": package}

    def why(pid: int, *more: str) -> dict[str, Any]:
        began = time.monotonic()
        words = [options.lowtide, "why", str(pid), "--json", *more]
        done = subprocess.run(
            words, check=False, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
        return {**answer, "took_s": time.monotonic() - began, "said": done.stderr.strip()}

    def asked(prefix: list[str], *more: str) -> dict[str, Any]:
        child = subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            first = why(child.pid, *more)
            found = {"first": first, "again": why(child.pid, *more)}
            held = found["again"].get("why", {}).get("held", [])
            found["names_it"] = any("held['cache']" in one["path"] for one in held)
            name = found["again"].get("name")
            if name:
                found["cut"] = why(child.pid, *more, "--cut", "1", "--of", name, "--yes")
            found["goes_on"] = child.poll() is None
            return found
        finally:
            child.kill()
            child.wait()

    results: dict[str, Any] = {"agent": asked([options.lowtide, "run", "--"])}
    if shutil.which("gdb") is None:
        results["inject"] = "there is no gdb"
    else:
        results["inject"] = asked([], "--inject")
    print(json.dumps(results, indent=1))
    way = results["agent"]
    freed = way.get("cut", {}).get("freed_bytes", 0)
    # Freed by the device's number: what the program itself allocates meanwhile is taken off.
    return 0 if way["names_it"] and way["goes_on"] and freed >= (1 << 28) - (2 << 20) else 1


if __name__ == "__main__":
    sys.exit(main())
