"""What the worker processes of the tests run. It imports no torch, so that they start quickly."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

MIB = 1 << 20


class Holder:
    """Holds memory whose every page is there."""

    def __init__(self, size: int = 64 * MIB, name: str = "holder") -> None:
        self.memory = bytearray(os.urandom(4096)) * (size // 4096)
        self.name = name
        self.calls = 0

    def __call__(self, number: int) -> int:
        self.calls += 1
        return number + 1

    def pid(self) -> int:
        return os.getpid()

    def counted(self) -> int:
        self.calls += 1
        return self.calls

    def slow(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"

    def says_and_waits(self, file: str) -> None:
        open(file, "w").close()
        time.sleep(600)

    def wait_for(self, file: str) -> str:
        while not os.path.exists(file):
            time.sleep(0.01)
        return "done"

    def fails(self, text: str) -> None:
        raise ValueError(text)

    def fails_oddly(self) -> None:
        raise Odd("one", "two")

    def exits(self) -> None:
        sys.exit("a worker wants to exit")

    def dies(self) -> None:
        os._exit(7)

    def is_killed(self) -> None:
        os.kill(os.getpid(), 9)

    def unpicklable(self) -> object:
        return lambda: None

    def starts_another(self, *, alone: bool = False) -> int:
        return subprocess.Popen(["sleep", "600"], start_new_session=alone).pid

    def forks(self) -> int:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        return child

    def size(self, data: bytes) -> int:
        return len(data)

    def handle(self) -> Handle:
        return Handle()


class Handle:
    """An answer that calls, where it arrives, what was asked for it."""

    calls: Callable[[], object] = staticmethod(int)

    def __reduce__(self) -> tuple[Callable[[], Handle], tuple[()]]:
        return arrive, ()


def arrive() -> Handle:
    Handle.calls()
    return Handle()


class Odd(Exception):
    """It cannot be made from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def refuses() -> None:
    raise MemoryError("there is no room")


def load_reranker(name: str) -> Holder:
    return Holder(4 * MIB, name)


class OnGpu:
    """Holds memory of a GPU, and with it a context."""

    def __init__(self, size: int) -> None:
        import torch

        self.memory = torch.ones(size, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()

    def __call__(self) -> int:
        return int(self.memory[:8].sum())
