"""`pip install .` says what it needs, and the wheel lists every file that is added to it."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"

pytestmark = pytest.mark.skipif(not PACKAGING.is_dir(), reason="this is not a checkout")


def program(folder: Path, name: str, says: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(0o755)


def asked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Asks the build as pip does first, on a machine that has only the programs of a folder."""
    code = "import backend; print(backend.get_requires_for_build_wheel())"
    variables = {"PATH": str(folder), "PYTHONPATH": str(PACKAGING), "CARGO_TERM_QUIET": "true"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(importlib.util.find_spec("maturin") is None, reason="maturin is not installed")
def test_what_is_missing_is_said_in_one_message(tmp_path: Path) -> None:
    done = asked(tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "Rust is not on the search path" in done.stderr
    assert "no C compiler" in done.stderr
    program(tmp_path, "cargo", "cargo 1.50.0")
    program(tmp_path, "rustc", "rustc 1.50.0 (of a long time ago)")
    program(tmp_path, "cc", "cc 12")
    done = asked(tmp_path)
    assert done.returncode == 1 and "Rust is 1.50, which is too old" in done.stderr
    assert "C compiler `cc`" not in done.stderr
    program(tmp_path, "rustc", "rustc 1.99.0")
    done = asked(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Rust 1.99" in done.stdout


def test_the_programs_are_in_the_wheel_and_in_its_record(tmp_path: Path) -> None:
    wheel = tmp_path / "lowtide-1.2.3-cp310-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("lowtide/__init__.py", "")
        file.writestr("lowtide-1.2.3.dist-info/RECORD", "lowtide-1.2.3.dist-info/RECORD,,\n")
    command = [sys.executable, str(PACKAGING / "wheel_file.py"), str(wheel)]
    for name in ("lowtide", "liblowtide_agent.so", "lowtide-helper"):
        (tmp_path / name).write_bytes(name.encode())
        command.append(str(tmp_path / name))
    subprocess.run(command, check=True, timeout=60)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        rows = csv.reader(io.StringIO(file.read("lowtide-1.2.3.dist-info/RECORD").decode()))
        for path, digest, size in (row for row in rows if row[1]):
            content = file.read(path)
            found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            assert (digest, int(size)) == (f"sha256={found.rstrip('=')}", len(content))
            names.discard(path)
        for path in ("scripts/lowtide", "data/lib/lowtide/lowtide-helper"):
            mode = file.getinfo(f"lowtide-1.2.3.data/{path}").external_attr >> 16
            assert mode & 0o111, path
    assert names == {"lowtide/__init__.py", "lowtide-1.2.3.dist-info/RECORD"}


def test_a_package_without_the_program_says_so() -> None:
    code = "import lowtide.__main__ as main; main.find_program = lambda: None; main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "without the program `lowtide`" in done.stderr
