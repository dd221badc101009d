"""Memory that was sent to another process.

A tensor goes to a consumer through a queue. Both sides have let go of it. The sender keeps the
block aside until it has looked whether the receiver is done, and it looks only at its next
sending, or in `torch.cuda.ipc_collect()`.
"""

import contextlib
from typing import Any

import torch.multiprocessing as mp

from zoo.case import Case, big, examine

CASE = Case(
    names=(r"(?i)\bipc|native|no Python object",),
    cut=r"(?i)ipc|release\(\)",
    cure="import torch; torch.cuda.ipc_collect(); torch.cuda.empty_cache()",
    storages=False,
    gpu="host memory is shared by files, not by the driver",
)


def consume(inbox: Any, done: Any, end: Any) -> None:
    scores = inbox.get()
    scores.sum().item()
    del scores
    done.set()
    # It lives as long as the sender, which ends without a word.
    with contextlib.suppress(EOFError):
        end.recv()


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    inbox, done = spawn.Queue(), spawn.Event()
    end, theirs = spawn.Pipe()
    consumer = spawn.Process(target=consume, args=(inbox, done, theirs), daemon=True)
    consumer.start()
    inbox.put(big())
    done.wait()
    examine(CASE)
