"""Runs the commands of a trial in its own environment and folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# For what hangs: on a busy machine a command has taken ten minutes.
LIMIT_S = 3600


def run(folder: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of this environment in the folder, offline and on the CPU. Fails if the command fails."""
    common = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LOWTIDE_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | common | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done
