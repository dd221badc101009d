"""A signal handler.

The handler for SIGTERM saves a checkpoint, and its closure holds the weights. The interpreter keeps
handlers in a table of its own.
"""

import signal

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(
        r"closure|handle",
        r"weights",
    ),
    cut=r"signal",
    cure="signal.signal(signal.SIGUSR1, signal.SIG_DFL)",
    holder="signal.getsignal(signal.SIGUSR1)",
)


def install() -> None:
    weights = big()

    def save(number: int, frame: object) -> None:
        weights.cpu()

    signal.signal(signal.SIGUSR1, save)


if __name__ == "__main__":
    install()
    examine(CASE)
