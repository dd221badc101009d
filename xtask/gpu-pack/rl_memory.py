"""What a part of `rl.py` has on the card: weights that a seed tells, and scratch; how it checks and writes them, and how
it moves them by itself: with torch_memory_saver, or with copies of its own."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from driver import MIB, call, holds, make

SAVERS = ("saver", "retaining")


class Torch:
    """Weights as random numbers that a seed tells, and scratch."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.torch, self.saver, self.way = torch, None, options.way
        self.block = min(1 << 30, int(options.weights * 2**30))
        self.counts = round(options.weights * 2**30 / self.block), round(options.scratch * 4)
        if options.way in SAVERS:
            sys.path.insert(0, str(options.peers))
            from torch_memory_saver import torch_memory_saver

            self.saver = torch_memory_saver
            self.saver.hook_mode = "torch"

    def load(self) -> None:
        self.torch.zeros(1, device="cuda")  # the context
        weights, scratch = self.counts
        if self.saver is None:
            self.blocks, self.scratch = self.random_blocks(weights), self.zeros(scratch)
        else:
            with self.saver.region(tag="weights", enable_cpu_backup=True):
                self.blocks = self.random_blocks(weights)
            with self.saver.region(tag="scratch"):
                self.scratch = self.zeros(scratch)
            self.saver.retain_cpu_backup = self.way == "retaining"
        self.torch.cuda.synchronize()

    def random_blocks(self, count: int) -> list[Any]:
        return [self.random(0, at) for at in range(count)]

    def zeros(self, count: int) -> list[Any]:
        return [self.torch.zeros(1 << 28, dtype=self.torch.uint8, device="cuda") for _ in range(count)]

    def random(self, step: int, at: int) -> Any:
        generator = self.torch.Generator(device="cuda").manual_seed(1000 * step + at)
        size = (self.block // 8,)
        return self.torch.randint(-(1 << 62), 1 << 62, size, device="cuda", generator=generator)

    def touch(self) -> None:
        self.blocks[0][0].item()

    def is_right(self, step: int) -> bool:
        return all(self.torch.equal(block, self.random(step, at)) for at, block in enumerate(self.blocks))

    def write(self, step: int) -> None:
        for at, block in enumerate(self.blocks):
            block.copy_(self.random(step, at))
        self.torch.cuda.synchronize()

    def use_scratch(self) -> None:
        for piece in self.scratch:
            piece[:64].add_(1)
        self.torch.cuda.synchronize()

    def pause(self) -> None:
        assert self.saver is not None
        self.saver.pause("weights")
        self.saver.pause("scratch")
        self.torch.cuda.empty_cache()

    def resume(self) -> None:
        assert self.saver is not None
        self.saver.resume("weights")
        self.saver.resume("scratch")
        self.torch.cuda.synchronize()


class Driver:
    """The same by the driver's functions, in blocks of 4 MiB."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.size = 4 * MIB
        self.counts = round(options.weights * 256), round(options.scratch * 16)
        self.backups: list[bytes] = []

    def load(self) -> None:
        call("cuInit", 0)
        self.context = make("cuDevicePrimaryCtxRetain", 0)
        self.allocate()
        self.write(0)

    def allocate(self) -> None:
        call("cuCtxSetCurrent", self.context)
        weights, scratch = self.counts
        self.blocks = [make("cuMemAlloc_v2", self.size) for _ in range(weights)]
        self.scratch = [make("cuMemAlloc_v2", 64 * MIB) for _ in range(scratch)]

    def data(self, step: int, at: int) -> bytes:
        return bytes((step + at + byte) % 256 for byte in range(256)) * (self.size // 256)

    def touch(self) -> None:
        call("cuCtxSetCurrent", self.context)
        call("cuMemcpyDtoH_v2", bytes(256), self.blocks[0], 256)

    def is_right(self, step: int) -> bool:
        return all(holds(block, self.data(step, at)) for at, block in enumerate(self.blocks))

    def write(self, step: int) -> None:
        for at, block in enumerate(self.blocks):
            call("cuMemcpyHtoD_v2", block, self.data(step, at), self.size)

    def use_scratch(self) -> None:
        for piece in self.scratch:
            call("cuMemsetD8_v2", piece, 1, 64)

    def pause(self) -> None:
        call("cuCtxSetCurrent", self.context)
        self.backups = [bytes(self.size) for _ in self.blocks]
        for block, backup in zip(self.blocks, self.backups, strict=True):
            call("cuMemcpyDtoH_v2", backup, block, self.size)
        for at in self.blocks + self.scratch:
            call("cuMemFree_v2", at)

    def resume(self) -> None:
        self.allocate()
        for block, backup in zip(self.blocks, self.backups, strict=True):
            call("cuMemcpyHtoD_v2", block, backup, self.size)


BACKENDS: dict[str, type[Torch | Driver]] = {"torch": Torch, "driver": Driver}
