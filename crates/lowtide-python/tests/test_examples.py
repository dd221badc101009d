"""The examples of the README: they run, and say what the README says they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_r21_the_planted_holder_is_named_by_one_call() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shutdown.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )
    assert ": pinned," in done.stdout.splitlines()[0]
    held = [line for line in done.stdout.splitlines() if line.startswith("  held:")]
    assert len(held) == 1, done.stdout
    assert "metrics._watched['Sequential']['forward']" in held[0]
    statement = "import sys; del sys.modules['metrics']._watched['Sequential']['forward']"
    assert f"→ {statement}  # cut 1: lets 16 pieces of Sequential go" in done.stdout
    assert f"cut 1  {statement} → frees" in done.stdout.rsplit("why on", 1)[1]
