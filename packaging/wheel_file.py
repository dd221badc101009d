"""Adds the programs to a wheel that maturin has built.

    python3 packaging/wheel_file.py WHEEL PROGRAM AGENT HELPER

A wheel is a zip file whose `RECORD` lists every file with its digest. `NAME.data/scripts` goes to the
environment's `bin`, and `NAME.data/data` to its root: the command finds the agent and the helper in
`../lib/lowtide`.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

# The same time in every file, so that the same files make the same wheel.
AT = (1980, 1, 1, 0, 0, 0)


def add_programs(wheel: Path, program: Path, agent: Path, helper: Path, root: Path) -> None:
    """Adds the command, the agent, the helper and the files that `lowtide run --adopt` needs to a wheel."""
    name = "-".join(wheel.name.split("-")[:2])
    lib = f"{name}.data/data/lib/lowtide"
    files = {
        f"{name}.data/scripts/lowtide": program,
        f"{lib}/liblowtide_agent.so": agent,
        f"{lib}/lowtide-helper": helper,
        f"{lib}/adopt/sitecustomize.py": root / "crates/lowtide-python/adopt/sitecustomize.py",
    }
    rewritten = wheel.with_suffix(".part")
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(rewritten, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        record = f"{name}.dist-info/RECORD"
        rows = old.read(record).decode()
        for entry in old.infolist():
            if entry.filename != record:
                new.writestr(entry, old.read(entry))
        for path, file in files.items():
            content = file.read_bytes()
            entry = zipfile.ZipInfo(path, AT)
            entry.external_attr = 0o100755 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(entry, content)
            rows += row(path, content)
        entry = zipfile.ZipInfo(record, AT)
        entry.external_attr = 0o100644 << 16
        new.writestr(entry, rows)
    rewritten.replace(wheel)


def row(path: str, content: bytes) -> str:
    """Returns a file's line in `RECORD`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


if __name__ == "__main__":
    wheel, program, agent, helper = map(Path, sys.argv[1:])
    add_programs(wheel, program, agent, helper, Path(__file__).resolve().parent.parent)
