"""What a Python program counts of its releases, in a file that its death does not take along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

#: Releases in a program without an agent; the receipts are printed before the program kills itself.
PROGRAM = """
import json, os, signal, lowtide
receipts = [lowtide.release() for _ in range(3)] + [lowtide.empty_device_cache()]
if child := os.fork():
    os.waitpid(child, 0)
else:
    lowtide.release()
    os._exit(0)
print(json.dumps([(str(receipt.verdict), receipt.took_s) for receipt in receipts]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

#: The order of the counters after the first number, which names the layout.
VERDICTS = [
    "released",
    "partial",
    "no-effect",
    "pinned",
    "busy",
    "unverified",
    "no-device",
    "failed",
]


def numbers(path: Path) -> list[int]:
    data = path.read_bytes()
    assert data[:8] == b"1editwol", "the layout of this version"
    return [int.from_bytes(data[at : at + 8], sys.byteorder) for at in range(8, len(data), 8)]


def test_a_program_that_is_killed_has_counted_its_receipts(tmp_path: Path) -> None:
    variables = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "LOWTIDE_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    receipts = json.loads(done.stdout)
    files = sorted(
        (tmp_path / "lowtide").glob("tally-*-python"), key=lambda path: path.stat().st_mtime_ns
    )
    of_parent = numbers(files[-1]) if len(files) == 1 else numbers(min(files, key=pid))
    counted = dict(zip(VERDICTS, of_parent, strict=False))
    assert sum(counted.values()) == len(receipts) == 4
    for verdict in VERDICTS:
        assert counted[verdict] == sum(told == verdict for told, _ in receipts), counted
    # The durations of releases come after the bytes: buckets, then their sum in nanoseconds.
    releases = of_parent[len(VERDICTS) + 2 :][:12]
    assert sum(releases[:11]) == 4
    assert abs(releases[11] - sum(took_s for _, took_s in receipts) * 1e9) <= 4
    # A forked child's receipts are not its parent's.
    assert [
        sum(numbers(path)[: len(VERDICTS)]) for path in files if path != min(files, key=pid)
    ] in ([], [1])


def pid(path: Path) -> int:
    return int(path.name.split("-")[2])
