"""R11–R15: after inference, and between tasks."""

from __future__ import annotations

import asyncio
import gc
import time

import lowtide
import pytest
from kernel import DEVICE, MIB, SIZE, Caching, Piece, in_use, is_about, weights

pytestmark = pytest.mark.usefixtures("clean")


class Cycle:
    def __init__(self, payload: object) -> None:
        self.payload, self.me = payload, self


def test_r11_collect_comes_first_and_alternates_with_trim() -> None:
    device = Caching()
    dead = [device.allocate(), device.allocate()]

    def collect() -> None:
        # Each collection brings one back, and there is a third that finds nothing.
        if dead:
            device.free(dead.pop())

    device.pieces = [Piece(device.log, "collect", "collect", collect)]
    before = in_use()
    receipt = lowtide.empty_device_cache(device)
    assert device.log[:6] == ["collect", "trim", "collect", "trim", "collect", "trim"]
    assert is_about(before - in_use(), 2 * SIZE)
    assert receipt.verdict == "released"


def test_r11_what_dies_in_the_second_collection_is_back_too() -> None:
    class Late:
        """Its end makes new garbage, which only the next collection finds."""

        def __init__(self) -> None:
            self.me, self.weights = self, weights()

        def __del__(self) -> None:
            Cycle(self.weights)
            self.weights = None

    # The first release imports modules, during which Python would collect by itself.
    gc.disable()
    try:
        before = in_use()
        Late()
        assert is_about(in_use() - before, SIZE)
        receipt = lowtide.empty_device_cache(DEVICE)
    finally:
        gc.enable()
    assert is_about(in_use(), before)
    assert receipt.verdict == "released"


def test_r12_every_task_leaves_the_device_as_it_was() -> None:
    def work() -> None:
        Cycle(weights())

    before = in_use()
    seen = []
    for task in lowtide.tasks(["mmmu", "video-mme", "chartqa"], device=DEVICE):
        seen.append((task, is_about(in_use(), before)))
        work()
        assert is_about(in_use() - before, SIZE), "its garbage is there until the task has ended"
    assert seen == [("mmmu", True), ("video-mme", True), ("chartqa", True)]
    assert is_about(in_use(), before), "and after the last"


def test_r12_also_where_the_loop_ends_early() -> None:
    before = in_use()
    with pytest.raises(ValueError, match="stop"):
        for _ in lowtide.tasks(["one", "two"], device=DEVICE):
            Cycle(weights())
            raise ValueError("stop")
    for _ in lowtide.tasks(["one", "two"], device=DEVICE):
        Cycle(weights())
        break
    assert is_about(in_use(), before)


def test_r12_automatic_after_inference() -> None:
    @lowtide.after_inference(device=DEVICE)
    def infer(size: int) -> int:
        Cycle(weights(size))
        return size + 1

    @lowtide.after_inference(device=DEVICE)
    async def infer_later(size: int) -> int:
        Cycle(weights(size))
        await asyncio.sleep(0)
        return size + 2

    @lowtide.after_inference(device=DEVICE)
    def fails() -> None:
        Cycle(weights())
        raise ValueError("no")

    before = in_use()
    assert infer(SIZE) == SIZE + 1
    assert is_about(in_use(), before)
    assert asyncio.run(infer_later(SIZE)) == SIZE + 2
    assert is_about(in_use(), before)
    with pytest.raises(ValueError, match="no"):
        fails()
    assert is_about(in_use(), before)
    assert infer.__name__ == "infer"


def test_r13_frames_are_back_with_the_driver_before_the_next_task_begins() -> None:
    device = Caching()
    before = in_use()
    for _ in lowtide.tasks(["video", "images"], device=device):
        assert is_about(in_use(), before), "the frames of the one before are gone"
        frames = [device.allocate(48 * MIB) for _ in range(3)]
        while frames:
            device.free(frames.pop())
        assert is_about(in_use() - before, 144 * MIB), "freed, and still taken"


def test_r14_what_the_allocator_holds_and_what_is_free_are_apart() -> None:
    device = Caching()
    kept = device.allocate(64 * MIB)
    device.free(device.allocate())
    receipt = lowtide.empty_device_cache(device)
    before, after = receipt.before, receipt.after
    assert (before.allocated_bytes, before.reserved_bytes) == (64 * MIB, 64 * MIB + SIZE)
    assert (after.allocated_bytes, after.reserved_bytes) == (64 * MIB, 64 * MIB)
    assert before.driver_free_bytes is not None and after.driver_free_bytes is not None
    assert is_about(after.driver_free_bytes - before.driver_free_bytes, SIZE)
    for column in ("allocated", "reserved", "in use on the device"):
        assert column in receipt.summary()
    del kept


def test_r15_the_share_of_cleaning_is_small_and_told() -> None:
    device = Caching()
    stages = lowtide.Stages(device)
    receipts = []
    for name in ("one", "two"):
        device.free(device.allocate())
        receipts.append(stages.between(name))
    report = stages.report()
    assert report.cleaning_s == pytest.approx(sum(receipt.took_s for receipt in receipts))
    assert 0 < report.cleaning_share <= 1
    # The share itself is measured, not tested: no test asserts a time.
    before = report.cleaning_share
    time.sleep(max(0.05, report.cleaning_s))
    assert stages.report().cleaning_share < before, "it falls while tasks run"
