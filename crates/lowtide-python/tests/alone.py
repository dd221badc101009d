"""Programs that run in a process of their own: what they do cannot be undone, or may crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap

LIMIT_S = 120


def alone(code: str) -> str:
    """Runs a program in a process of its own. Returns what it prints; fails unless it ends well."""
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr[-3000:]}"
    return done.stdout
