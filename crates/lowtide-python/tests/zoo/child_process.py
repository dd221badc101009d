"""A child process.

The server was stopped; a worker that it had started was not, and has a context and a model on the
device. Nothing in this process holds them, so nothing in this process can free them.
"""

import subprocess
import sys

import torch

from zoo.case import PINNED, Case, examine

CASE = Case(
    names=(r"(?i)other process|another process|pid",),
    cut=r"(?i)process",
    verdict=f"{PINNED}|no-effect|released|partial",  # this process's own cache may come back
    because="the memory is another process's",
    frees=False,
    then="cure",
    by_hand="the memory is another process's",
    cure="child.terminate(); child.wait()",
    storages=False,
    gpu="host memory of other processes is not ours to look at",
)

WORKER = (
    "import torch; held = torch.ones(128 << 18, device='cuda'); print('up', flush=True); input()"
)


if __name__ == "__main__":
    torch.ones(1, device="cuda")
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout and child.stdout.readline() == b"up\n"
    examine(CASE)
    child.kill()
