"""What a release claims on host memory, by a pass over the collector's objects instead of a walk.

The pass must find what a walk finds, in whatever way the memory is held; and where it cannot, a walk has to
be made.
"""

from __future__ import annotations

import functools
import gc
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from alone import alone_with_torch, in_a_fork
from lowtide import _native
from lowtide._devices.cpu import CpuDevice
from lowtide._rungs import caches
from lowtide._rungs.collector import Collector
from lowtide._runtime.heap import Interpreter
from lowtide._why.memory import listed
from lowtide._why.question import Question

MIB = 1 << 20
SIZE = 4 * MIB
FLOATS = SIZE // 4


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(FLOATS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def scripted() -> Any:
    """A scripted module whose parameters have never been Python objects."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Part()), file)
    file.seek(0)
    return torch.jit.load(file)


def packed() -> Any:
    """Parameters of a quantised module, which are no tensors."""
    weight = torch.quantize_per_tensor(torch.ones(1024, SIZE // 1024), 0.1, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, None)


def saved() -> Any:
    """A result whose graph alone keeps the values that it was computed from."""
    leaf = torch.ones(FLOATS, requires_grad=True)
    return (leaf.exp() * 2).sum()


def in_cycle() -> None:
    tensor: Any = torch.ones(FLOATS)
    tensor.me = tensor


WAYS: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.ones(FLOATS),
    "a view": lambda: torch.ones(2 * FLOATS)[:1],
    "an array over a tensor": lambda: torch.ones(FLOATS).numpy(),
    "a tensor over an array": lambda: torch.from_numpy(torch.ones(FLOATS).numpy()),
    "a capsule": lambda: torch.utils.dlpack.to_dlpack(torch.ones(FLOATS)),
    "a storage": lambda: torch.ones(FLOATS).untyped_storage(),
    "a sparse tensor": lambda: torch.ones(FLOATS).to_sparse(),
    "values that a graph saved": saved,
    "an unreachable cycle": in_cycle,
    "a scripted module": scripted,
    "the native part of a scripted module": lambda: scripted()._c,
    "packed parameters": packed,
}


def walked() -> int:
    return _native.examine(Question(device="cpu")).memory.bytes


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A pass is enough, as after an earlier release. Counts the walks from here on."""
    listed.memory_of("cpu")
    assert listed.Listed("cpu").all_bytes is not None
    walks: list[int] = []

    def examine(question: Any) -> Any:
        walks.append(1)
        return _native.examine(question)

    monkeypatch.setattr(listed, "examine", examine)
    yield walks


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_finds_what_a_walk_finds(passes: list[int], way: str) -> None:
    before = listed.memory_of("cpu")
    try:
        held = WAYS[way]()
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch has no {way}: {error}")
    found = listed.memory_of("cpu")
    assert found - before >= SIZE
    assert found == walked()
    del held
    gc.collect(1)


def test_a_tensor_needs_no_walk(passes: list[int]) -> None:
    before = listed.memory_of("cpu")
    tensor = torch.ones(FLOATS)
    assert listed.memory_of("cpu") - before == SIZE == tensor.nbytes
    assert passes == []


def test_what_takes_no_part_in_collections_needs_a_walk_each_time(passes: list[int]) -> None:
    before = listed.memory_of("cpu")
    held = scripted()._c
    for times in (1, 2):
        assert listed.memory_of("cpu") - before >= SIZE
        assert len(passes) == times
    del held


@in_a_fork
def test_frozen_memory_is_claimed_too() -> None:
    before = listed.memory_of("cpu")
    tensor = torch.ones(FLOATS)
    gc.freeze()
    for in_place in {False, Interpreter.knows_generations}:
        Interpreter.knows_generations = in_place
        by_pass = listed.memory_if_listed("cpu")
        assert by_pass == (before + tensor.nbytes if in_place else None)
        assert listed.memory_of("cpu") - before == tensor.nbytes


def test_a_release_that_leaves_nothing_asks_the_heap_nothing_more() -> None:
    """The first one learns that a pass is enough."""
    said = alone_with_torch(
        """
        import gc, torch, lowtide
        from lowtide import _native
        from lowtide._why import question
        from lowtide._why.memory import listed

        asked = []
        def examine(question):
            asked.append(1)
            return _native.examine(question)
        question.examine = listed.examine = examine
        listed._complete.clear()

        class Cycle:
            def __init__(self):
                self.weights, self.me = torch.ones(16 << 20), self

        for _ in range(3):
            Cycle()
            asked.clear()
            receipt = lowtide.release(device="cpu")
            print(receipt.verdict, receipt.claim.bytes, len(asked))
        kept = torch.ones(16 << 20)
        asked.clear()
        receipt = lowtide.release(device="cpu")
        print(receipt.verdict, receipt.claim.bytes, len(asked), receipt.holders[0].path)
        """
    )
    size = 64 * MIB
    assert said.splitlines() == [
        f"released {size} 1",
        f"released {size} 0",
        f"released {size} 0",
        f"pinned {size} 1 kept",
    ]


def test_a_collection_that_could_free_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation: asked.append(generation) or 1)
    device = CpuDevice()
    held: list[int | None] = [0]
    monkeypatch.setattr(device, "held", lambda: held[0])
    collector = Collector(device)
    collector.run(0)
    collector.run(1)
    assert asked == [2, 1], "nothing is held, so that nothing can be freed"
    for held[0] in (64 * MIB, None):
        asked.clear()
        collector.run(0)
        collector.run(1)
        assert asked == [2, 1, 2], held


def test_every_cache_is_found_whichever_were_known() -> None:
    first = functools.lru_cache(lambda: torch.ones(1))
    assert any(one is first for one in caches.lru_caches())
    second = functools.lru_cache(lambda: torch.ones(1))
    known = caches.lru_caches()
    assert any(one is first for one in known) and any(one is second for one in known)
    assert [id(one) for one in caches.lru_caches()] == [id(one) for one in known]
    del known, first
    third = functools.lru_cache(lambda: torch.ones(1))
    found = caches.lru_caches()
    assert any(one is second for one in found) and any(one is third for one in found)
    everything = [one for one in gc.get_objects() if type(one) is caches.Wrapper]
    assert {id(one) for one in found} == {id(one) for one in everything}


def test_the_references_of_the_types_are_the_same_at_each_look() -> None:
    assert listed._references() == listed._references()
    assert listed._references(), "torch has such types"
    assert all(id(one) not in listed._references() for one in (torch.Tensor, torch.UntypedStorage))


class Shop:
    pass


def test_what_some_objects_lead_to_is_found_with_the_same_limits() -> None:
    shop, tensors = Shop(), [torch.ones(1) for _ in range(4)]
    shop.attribute = {"a": [tensors[0], (tensors[1],)]}  # type: ignore[attr-defined]
    shop.function = lambda tensor=tensors[2]: tensor  # type: ignore[attr-defined]
    shop.me = shop  # type: ignore[attr-defined]
    roots = [shop, tensors[3], tensors[3]]

    def found(not_through: list[type], most: int) -> list[int]:
        objects = _native.led_to(roots, [torch.Tensor], not_through, most)
        return [at for one in objects for at, tensor in enumerate(tensors) if tensor is one]

    assert found(list(caches.NOT_THROUGH), 1000) == [3, 0, 1]
    assert sorted(found([type], 1_000_000)) == [0, 1, 2, 3], "through functions as well"
    assert found(list(caches.NOT_THROUGH), 2) == [3], "no further than so many objects"
    assert found([Shop], 1000) == [3]
