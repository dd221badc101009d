"""Issue 14, releases 8: a release that would free nothing costs next to nothing, and hides nothing."""

from __future__ import annotations

import gc
from typing import Any

import lowtide
import pytest
import torch
from kernel import MIB, SIZE, Caching, in_use, is_about, weights
from lowtide._devices.cpu import CpuDevice
from lowtide._native import LedgerKind
from lowtide._rungs import collector
from lowtide._rungs.collector import Collector, Watched

pytestmark = pytest.mark.usefixtures("clean")


class Counting(Caching):
    """It counts as torch does, and has Python's collector."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0, 0]
        # Its memory is the host's.
        self.pieces = [Collector(CpuDevice())]

    def allocate(self, size: int = SIZE) -> torch.Tensor:
        self.calls[0] += 1
        return super().allocate(size)

    def free(self, tensor: torch.Tensor) -> None:
        self.calls[1] += 1
        super().free(tensor)

    def counters(self) -> tuple[int, int]:
        return self.calls[0], self.calls[1]


class Model:
    """A model in a cycle, whose end gives its memory back to the device's allocator."""

    def __init__(self, device: Counting, size: int = SIZE) -> None:
        self.device, self.me = device, self
        self.weights = device.allocate(size)

    def __del__(self) -> None:
        self.device.free(self.weights)


@pytest.fixture
def device() -> Counting:
    return Counting()


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The generations that were collected."""
    seen: list[int] = []
    collect = gc.collect

    def note(generation: int = 2) -> int:
        seen.append(generation)
        return collect(generation)

    monkeypatch.setattr(gc, "collect", note)
    return seen


def test_r15_where_nothing_has_changed_only_the_numbers_are_read(
    device: Counting, collections: list[int]
) -> None:
    model = device.allocate()
    device.free(device.allocate())
    assert lowtide.empty_device_cache(device).verdict == "released"
    collections.clear()
    device.log.clear()
    receipt = lowtide.empty_device_cache(device)
    assert receipt.verdict == "released" and receipt.claim is not None
    assert receipt.claim.bytes == 0
    assert 2 not in collections and "trim" not in device.log and "synchronise" not in device.log
    assert [rung.rung for rung in receipt.rungs] == ["collect", "trim"]
    assert "nothing was allocated or freed since the last full collection" in receipt.detailed()
    assert model.nbytes == SIZE


def test_a_model_in_a_cycle_goes_although_no_counter_moved(device: Counting) -> None:
    """The skip must not hide it: neither a variable nor an attribute nor a container."""

    class Engine:
        def __init__(self) -> None:
            self.model: Model | None = Model(device)
            self.others = {"draft": Model(device)}

    before = in_use()
    model, engine = Model(device), Engine()
    lowtide.empty_device_cache(device)
    assert is_about(in_use() - before, 3 * SIZE)
    assert lowtide.empty_device_cache(device).freed_bytes == 0
    del model
    assert lowtide.empty_device_cache(device).verdict == "released"
    assert is_about(in_use() - before, 2 * SIZE)
    engine.model = None
    lowtide.empty_device_cache(device)
    assert is_about(in_use() - before, SIZE)
    engine.others.clear()
    lowtide.empty_device_cache(device)
    assert is_about(in_use(), before)


def test_young_garbage_around_old_memory_goes_too(device: Counting) -> None:
    before = in_use()
    kept = Model(device)
    lowtide.empty_device_cache(device)
    wrapper: dict[str, Any] = {"model": kept}
    wrapper["me"] = wrapper
    kept.me = None  # type: ignore[assignment]
    del kept, wrapper
    lowtide.empty_device_cache(device)
    assert is_about(in_use(), before)


def test_r15_after_work_a_full_collection_comes_only_where_it_is_needed(
    device: Counting, collections: list[int]
) -> None:
    lowtide.empty_device_cache(device)
    before = in_use()
    collections.clear()
    device.free(device.allocate())
    assert lowtide.empty_device_cache(device).verdict == "released"
    assert 2 not in collections and is_about(in_use(), before)
    Model(device)
    receipt = lowtide.empty_device_cache(device)
    assert 2 not in collections and is_about(in_use(), before)
    assert receipt.freed_bytes is not None and is_about(receipt.freed_bytes, SIZE), "it is told"
    old = Model(device)
    gc.collect()
    del old
    collections.clear()
    receipt = lowtide.empty_device_cache(device)
    assert 2 in collections, "more is allocated than the last one left"
    assert receipt.verdict == "released" and is_about(in_use(), before)


def test_the_caller_may_say_what_is_collected(device: Counting, collections: list[int]) -> None:
    lowtide.empty_device_cache(device)
    collections.clear()
    lowtide.empty_device_cache(device, collect=True)
    assert 2 in collections
    collections.clear()
    device.free(device.allocate())
    assert lowtide.empty_device_cache(device, collect=False).verdict == "released"
    assert collections == []
    gate = lowtide.Gate(device)
    gate.pause()
    device.free(device.allocate())
    resumed = gate.resume(collect=False)
    assert resumed is not None and resumed.verdict == "released"
    assert collections == []
    gate.pause()
    resumed = gate.resume()
    assert resumed is not None and 2 not in collections


def test_the_host_has_no_counters_and_needs_no_full_collection_each_time(
    collections: list[int],
) -> None:
    lowtide.empty_device_cache("cpu")
    collections.clear()
    before = in_use()
    lowtide.empty_device_cache("cpu")
    assert 2 not in collections
    cycle = {"weights": weights()}
    cycle["me"] = cycle  # type: ignore[assignment]
    gc.collect()
    del cycle
    lowtide.empty_device_cache("cpu")
    assert is_about(in_use(), before)


def test_r15_a_clean_up_may_have_a_rate() -> None:
    device = Counting()
    calls = 0

    @lowtide.after_inference(device=device, every="1h")
    def infer() -> None:
        nonlocal calls
        calls += 1
        device.free(device.allocate(4 * MIB))

    for _ in range(3):
        infer()
    assert calls == 3 and device.cached and len(device.cached) == 2, "the first was cleaned up"
    for _ in lowtide.tasks(["one", "two"], device=device, every="1h"):
        assert device.cached
    assert not device.cached, "the last task is cleaned up, always"
    stages = lowtide.Stages(device)
    assert stages.between("a", every=3600) is not None
    assert stages.between("b", every=3600) is None
    assert stages.between("c").verdict == "released"
    with pytest.raises(ValueError, match="soon"):
        lowtide.after_inference(every="soon")


class Watching:
    """An object that can be watched."""


def own(watched: Watched) -> list[object]:
    return [one for one in watched.fewer() if type(one) is Watching]


def test_what_is_watched_is_not_kept_and_the_fewest_references_count() -> None:
    watched = Watched()
    one = Watching()
    watched.look()
    also = one
    watched.look()
    del also
    assert not own(watched), "it had as few before"
    holder = [one]
    del one
    assert not own(watched), "a reference more and one less"
    del holder
    assert not own(watched), "it is gone"
    cycle = Watching()
    cycle.me = cycle  # type: ignore[attr-defined]
    watched.look()
    del cycle
    assert len(own(watched)) == 1
    assert not own(watched), "it is told once"


def test_variables_attributes_and_containers_are_watched_and_looking_keeps_nothing() -> None:
    def cycle() -> Watching:
        made = Watching()
        made.me = made  # type: ignore[attr-defined]
        return made

    gc.disable()  # It would free what a look has left behind.
    try:
        watched, engine = Watched(), Watching()
        model = cycle()
        engine.model, engine.models = cycle(), {"draft": cycle()}  # type: ignore[attr-defined]
        for _ in range(3):
            watched.look()
            assert not own(watched)
        del model
        assert len(own(watched)) == 1
        engine.model = None  # type: ignore[attr-defined]
        assert len(own(watched)) == 1
        engine.models.clear()  # type: ignore[attr-defined]
        assert len(own(watched)) == 1
    finally:
        gc.enable()


class Leaf:
    """Something that can be watched."""


def test_a_look_visits_no_more_than_its_limit_however_many_objects_one_holds() -> None:
    many = [Leaf() for _ in range(3 * collector.MOST_VISITED)]
    found = collector.near_running_code()
    assert len(found) <= collector.MOST_VISITED
    assert len(many) > collector.MOST_VISITED


@pytest.mark.parametrize("slowly", [False, True])
def test_r15_an_allocator_that_counts_slowly_is_asked_before_and_behind_what_was_freed(
    device: Counting, monkeypatch: pytest.MonkeyPatch, slowly: bool
) -> None:
    """A C library looks through all its free blocks to count them: 9 ms in a heap with many holes."""
    asked = {"counts": 0, "usage": 0}
    counts, usage = device.counts, device.usage

    def count(name: str, ask: Any) -> Any:
        def call() -> Any:
            asked[name] += 1
            return ask()

        return call

    device.counts_slowly = slowly
    stages = lowtide.Stages(device)
    stages.between("first")
    kept = device.allocate()
    device.free(device.allocate())
    monkeypatch.setattr(device, "counts", count("counts", counts))
    monkeypatch.setattr(device, "usage", count("usage", usage))
    receipt = stages.between("task")
    assert asked["counts"] <= 2 if slowly else asked["counts"] < asked["usage"], asked
    before, after = receipt.before, receipt.after
    assert (before.allocated_bytes, before.reserved_bytes) == (SIZE, 2 * SIZE)
    assert (after.allocated_bytes, after.reserved_bytes) == (SIZE, SIZE)
    rungs = {rung.rung: rung for rung in receipt.rungs}
    collect, trim = rungs["collect"], rungs["trim"]
    assert collect.after.reserved_bytes == SIZE
    assert (trim.after.reserved_bytes, trim.expected_bytes) == (SIZE, 0)
    assert receipt.ledger is not None
    assert receipt.ledger.of(LedgerKind.LIVE) == SIZE
    device.free(kept)
    assert stages.between("last").after.allocated_bytes == 0
