"""Device memory for the measurements of the agent: as PyTorch has it, and by the driver's own functions.

Each backend fills the device with bytes that can be checked, and has the loops that are timed with the agent and
without it.
"""

from __future__ import annotations

import ctypes
import random
import time
from typing import Any

MIB = 1 << 20


class Torch:
    """Device memory as PyTorch has it."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.blocks: list[object] = []
        self.sums: list[int] = []
        self.graph: Any = None
        self.additions: Any = None

    def fill(self, count: int, mib: int) -> None:
        torch = self.torch
        torch.manual_seed(15)
        for _ in range(count):
            block = torch.randint(-(1 << 62), 1 << 62, (mib * MIB // 8,), device="cuda")
            self.blocks.append(block)
        self.sums = self.sum()
        # The graph adds one to a number and writes the sum of the first block.
        self.number = torch.zeros((), dtype=torch.int64, device="cuda")
        self.total = torch.zeros((), dtype=torch.int64, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.number += 1
            self.total.copy_(self.blocks[0].sum())
        stream.synchronize()
        self.number.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.number += 1
            self.total.copy_(self.blocks[0].sum())
        self.replayed = 0

    def sum(self) -> list[int]:
        return [int(block.sum()) for block in self.blocks]

    def check(self) -> bool:
        return self.sum() == self.sums

    def replay(self) -> bool:
        self.graph.replay()
        self.torch.cuda.synchronize()
        self.replayed += 1
        return (int(self.number), int(self.total)) == (self.replayed, self.sums[0])

    def touch(self) -> bool:
        return int(self.blocks[0].sum()) == self.sums[0]

    def drop(self) -> None:
        import gc

        self.graph = self.number = self.total = None
        self.blocks.clear()
        gc.collect()
        self.torch.cuda.empty_cache()

    def launches(self, count: int) -> float:
        torch = self.torch
        number = torch.zeros(1024, device="cuda")
        for _ in range(count // 10):
            number.add_(1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            number.add_(1)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    def allocations(self, count: int) -> float:
        torch = self.torch
        torch.cuda.synchronize()
        began = time.perf_counter()
        for index in range(count):
            block = torch.empty((4 + index % 5) * MIB, dtype=torch.uint8, device="cuda")
            block.zero_()
            del block
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    def trims(self, count: int) -> float:
        """Takes memory of the driver and gives it back each time, which programs avoid."""
        torch = self.torch
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count // 100 + 1):
            block = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
            del block
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / (count // 100 + 1)

    def replays(self, count: int) -> float:
        torch = self.torch
        graph = self.twenty_additions()
        count = count // 4 + 1
        for _ in range(count // 10):
            graph.replay()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    def twenty_additions(self) -> Any:
        if self.additions is None:
            self.number = self.torch.zeros(1024, device="cuda")
            self.additions = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(self.additions):
                for _ in range(20):
                    self.number.add_(1)
        return self.additions


class Driver:
    """Device memory by the driver's own functions."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.blocks: list[ctypes.c_uint64] = []
        self.data: list[bytes] = []

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} failed with {code}")

    def fill(self, count: int, mib: int) -> None:
        dice = random.Random(15)
        self.size = ctypes.c_size_t(mib * MIB)
        for _ in range(count):
            at = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(at), self.size)
            self.blocks.append(at)
            self.data.append(dice.randbytes(mib * MIB))
            self.call("cuMemcpyHtoD_v2", at, self.data[-1], self.size)

    def is_right(self, number: int) -> bool:
        found = ctypes.create_string_buffer(self.size.value)
        self.call("cuMemcpyDtoH_v2", found, self.blocks[number], self.size)
        return found.raw == self.data[number]

    def check(self) -> bool:
        return all(self.is_right(number) for number in range(len(self.blocks)))

    def replay(self) -> bool:
        return True

    def touch(self) -> bool:
        return self.is_right(0)

    def drop(self) -> None:
        for at in self.blocks:
            self.call("cuMemFree_v2", at)
        self.blocks.clear()

    def launches(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self.call("cuCtxSynchronize")
        return (time.perf_counter() - began) / count

    replays = launches

    def trims(self, count: int) -> float:
        return self.allocations(count // 100 + 1)

    def allocations(self, count: int) -> float:
        began = time.perf_counter()
        at = ctypes.c_uint64()
        for index in range(count):
            self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t((4 + index % 5) * MIB))
            self.call("cuMemFree_v2", at)
        return (time.perf_counter() - began) / count


BACKENDS: dict[str, type[Torch | Driver]] = {"torch": Torch, "driver": Driver}
