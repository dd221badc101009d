"""Programs on the driver double for the actors of these tests: they allocate, write patterns and check every byte."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import time
from typing import Any

MIB = 1 << 20


class Card:
    """Device memory of this process, in blocks, each full of bytes that a seed tells."""

    def __init__(self, mib: float, seed: int, blocks: int = 2, holds_lock: bool = False) -> None:
        # `PyDLL` keeps the interpreter's lock during a call, as some frameworks do.
        self._cuda: Any = (ctypes.PyDLL if holds_lock else ctypes.CDLL)("libcuda.so.1")
        self._seed, self._size = seed, int(mib * MIB) // blocks
        context, self._at = ctypes.c_void_p(), []
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._context = context
        self._enter()
        for _ in range(blocks):
            at = ctypes.c_uint64()
            self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(self._size))
            self._at.append(at)
        self.write(seed)

    def _enter(self) -> None:
        # The context belongs to a thread, and each call of an actor may have another.
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def data(self, seed: int, block: int) -> bytes:
        """Returns what a block holds."""
        return random.Random(f"{seed} {block}").randbytes(4096) * (self._size // 4096)

    def write(self, seed: int) -> None:
        """Writes all blocks anew."""
        self._enter()
        self._seed = seed
        for block, at in enumerate(self._at):
            data = self.data(seed, block)
            self._call("cuMemcpyHtoD_v2", at, data, ctypes.c_size_t(len(data)))

    def read(self, block: int) -> bytes:
        """Returns a block's bytes."""
        self._enter()
        found = ctypes.create_string_buffer(self._size)
        self._call("cuMemcpyDtoH_v2", found, self._at[block], ctypes.c_size_t(self._size))
        return found.raw

    def check(self) -> int:
        """Compares every byte. Returns how many were compared."""
        for block in range(len(self._at)):
            assert self.read(block) == self.data(self._seed, block), f"block {block} is wrong"
        return self._size * len(self._at)

    def begin_capture(self) -> ctypes.c_void_p:
        """Begins the capture of a graph, which keeps the program awake. Returns the stream."""
        self._enter()
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 1)
        self._call("cuStreamBeginCapture_v2", stream, 2)
        return stream

    def end_capture(self, stream: ctypes.c_void_p) -> None:
        """Ends the capture."""
        self._enter()
        self._call("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))

    def free(self) -> None:
        """Returns all blocks to the driver."""
        self._enter()
        while self._at:
            self._call("cuMemFree_v2", self._at.pop())


class Holder:
    """An actor with device memory."""

    def __init__(self, mib: int, seed: int, holds_lock: bool = False) -> None:
        self.card = Card(mib, seed, holds_lock=holds_lock)

    def check(self) -> int:
        """Compares every byte."""
        return self.card.check()

    def write(self, seed: int) -> None:
        """Writes all bytes anew."""
        self.card.write(seed)

    def pid(self) -> int:
        """Returns the number of its process."""
        return os.getpid()

    def rest(self, seconds: float) -> None:
        """Keeps the actor in a call."""
        time.sleep(seconds)

    def start_child(self, mib: int) -> int:
        """Starts a process in a session of its own that has device memory, and does not end with this one."""
        path = os.pathsep.join(path for path in sys.path if path)
        code = f"import card, time; one = card.Card({mib}, 7); print('up', flush=True); time.sleep(600)"
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        return child.pid


class TorchHolder(Holder):
    """The same with tensors: what torch computes goes to the device and comes back equal."""

    def __init__(self, mib: int, seed: int) -> None:
        import torch

        self._torch = torch
        super().__init__(mib, seed)

    def check(self) -> int:
        """Compares the tensors."""
        torch, total = self._torch, 0
        for block in range(2):
            found = torch.frombuffer(bytearray(self.card.read(block)), dtype=torch.int64)
            wanted = torch.frombuffer(
                bytearray(self.card.data(self.card._seed, block)), dtype=torch.int64
            )
            assert torch.equal(found, wanted) and int(found.sum()) == int(wanted.sum())
            total += found.numel() * 8
        return total
