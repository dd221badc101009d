"""Which objects hold memory is found without running code of the program."""

from __future__ import annotations

import gc
import sys
import time
import types
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from alone import in_a_fork
from lowtide._devices.cuda_pools import PoolId
from lowtide._native import Memory, MemoryKind
from lowtide._why.memory import storages, unusual
from lowtide._why.memory.autograd import autograd_edges as all_edges
from lowtide._why.memory.probe import bytes_on, candidate_types, probe
from torch.autograd.graph import saved_tensors_hooks

counts_tensors = pytest.mark.skipif(
    not hasattr(torch.Tensor, "_use_count"),
    reason="this torch does not count native references to a tensor",
)


def fields(memory: Memory | None) -> Any:
    """All that is told of a piece of memory."""
    if memory is None:
        return None
    return memory.key, memory.bytes, memory.device, memory.native, memory.kind


def sized(objects: list[Any]) -> list[int | None]:
    return [None if one is None else one.bytes for one in probe(objects)]


def natives(*objects: Any) -> list[int | None]:
    return [None if one is None else one.native for one in probe(list(objects))]


class Edge(NamedTuple):
    position: int
    kept: list[Any]


def autograd_edges(tensors: list[Any], *most_nodes: int) -> list[Edge]:
    """Returns the edges without the nodes of the graphs."""
    found = []
    for position, kept, _ in all_edges(tensors, *most_nodes):
        kept = [one for one in kept if not hasattr(type(one), "next_functions")]
        found += [Edge(position, kept)] if kept else []
    return found


@pytest.fixture(params=["read", "asked"])
def way(request: Any, monkeypatch: Any) -> str:
    """Both ways to a storage's size: at its place, and through its object."""
    if request.param == "asked":
        monkeypatch.setattr(storages, "_offsets", lambda _: storages._Offsets(None, None))
    else:
        found = storages._offsets(torch)
        assert None not in found, "this torch keeps them elsewhere"
    return str(request.param)


class TestWhat:
    def test_views_share_their_storage(self, way: str) -> None:
        whole = torch.zeros(1000)
        few = whole[10:20]
        other = torch.zeros(7, dtype=torch.int8)
        objects = [whole, few, other, few.untyped_storage()]
        a, b, c, d = map(fields, probe(objects))
        assert a == (whole.untyped_storage()._cdata, 4000, "cpu", 0, MemoryKind.TENSOR)
        assert b == a and c[:3] == (other.untyped_storage()._cdata, 7, "cpu")
        assert d == (a[0], 4000, "cpu", 0, MemoryKind.STORAGE)
        assert bytes_on(objects, "cpu") == 4007 and bytes_on(objects, "cuda:0") == 0

    @in_a_fork
    def test_what_holds_nothing_is_none(self, way: str) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.zeros(10)
        emptied = torch.zeros(10)
        emptied.untyped_storage().resize_(0)
        objects = [torch.zeros(10, device="meta"), fake, emptied, torch.zeros(0), 3, "a", None, {}]
        assert probe(objects) == [None] * len(objects)

    def test_a_parameter_and_a_subclass(self) -> None:
        class Mine(torch.Tensor):
            pass

        assert sized([torch.nn.Parameter(torch.zeros(3)), torch.zeros(2).as_subclass(Mine)]) == [
            12,
            8,
        ]

    @pytest.mark.filterwarnings("ignore:Sparse")
    def test_sparse_tensors_have_their_parts(self) -> None:
        coo = torch.eye(8).to_sparse()
        csr = torch.sparse_csr_tensor(torch.arange(9), torch.arange(8), torch.ones(8))
        assert probe([coo, csr]) == [None, None], "their parts have the memory"
        parts = [sized(kept.kept) for kept in autograd_edges([coo, csr])]
        assert parts == [[8 * 4, 2 * 8 * 8], [8 * 4, 9 * 8, 8 * 8]]
        assert bytes_on([coo], "cpu") == 8 * 4 + 2 * 8 * 8

    def test_inside_a_function_transform(self) -> None:
        inside: list[Any] = []
        torch.vmap(lambda x: inside.append(probe([x])) or x)(torch.zeros(3, 2))
        assert inside == [[None]]

    def test_candidate_types(self) -> None:
        types = candidate_types()
        assert torch.Tensor in types and torch.UntypedStorage in types
        assert all(isinstance(one, type) for one in types)

    def test_cupy_arrays(self, monkeypatch: Any) -> None:
        class ndarray:
            def __init__(self, memory: object) -> None:
                self.data = SimpleNamespace(mem=memory)

        def memory(kind: str) -> Any:
            return type(kind, (), {"ptr": 4096, "size": 512, "device_id": 1})()

        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=ndarray))
        assert ndarray in candidate_types()
        own, borrowed = ndarray(memory("PooledMemory")), ndarray(memory("UnownedMemory"))
        found = [fields(one) for one in probe([own, borrowed])]
        assert found == [(4096, 512, "cuda:1", None, MemoryKind.ARRAY), None]

    def test_graphs_and_pools_hold_what_nobody_has_in_them(self) -> None:
        known = {
            PoolId(7, 0): unusual.Pool("cuda:0", 300),
            PoolId(0, 4): unusual.Pool("cuda:1", 20),
        }

        class Graph:
            def pool(self) -> tuple[int, int]:
                return (7, 0)

        class Uncaptured:
            def pool(self) -> tuple[int, int]:
                raise RuntimeError("without a preceding successful capture")

        fake = SimpleNamespace(_C=SimpleNamespace(_CUDAGraph=Graph))
        one, two = (fields(unusual.graph(fake, Graph(), known)) for _ in range(2))
        assert (
            one == two
            and one is not None
            and 1 << 63 <= one[0] < 1 << 64
            and one[1:] == (300, "cuda:0", None, MemoryKind.GRAPH)
        )
        fake._C._CUDAGraph = Uncaptured
        assert unusual.graph(fake, Uncaptured(), known) is None

    def test_real_cuda_types_without_cuda(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
        if hasattr(torch._C, "_CUDAGraph"):
            assert torch._C._CUDAGraph in candidate_types()
        assert unusual.pools() == {}
        assert not torch.cuda.is_initialized()


class TestNobodysCodeRuns:
    def test_subclasses_and_modes(self) -> None:
        ran: list[Any] = []

        class Loud(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, *rest: Any, **more: Any) -> Any:
                ran.append(func)
                return super().__torch_function__(func, *rest, **more)

            @property
            def device(self) -> Any:
                ran.append("device")
                return torch.device("cpu")

            def untyped_storage(self) -> Any:
                ran.append("untyped_storage")
                return super().untyped_storage()

            def __eq__(self, other: object) -> Any:
                ran.append("eq")
                return NotImplemented

            def __hash__(self) -> int:
                ran.append("hash")
                return 1

        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func: Any, *rest: Any) -> Any:
                ran.append(func)
                return None

        class Dispatches(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, *rest: Any) -> Any:
                ran.append(func)
                return None

        loud = torch.zeros(5).as_subclass(Loud)
        sparse = torch.eye(2).to_sparse()
        graph = (torch.ones(3, requires_grad=True) * 2).as_subclass(Loud)
        ran.clear()
        with Functions(), Dispatches():
            found = probe([loud, sparse])
            edges = autograd_edges([graph, loud, sparse])
            held = bytes_on([sparse], "cpu")
        assert ran == []
        assert found[0] is not None and found[0].bytes == 20
        assert held == 2 * 4 + 2 * 2 * 8
        assert {0, 2} <= {edge.position for edge in edges}

    def test_wrappers_answer_for_nothing(self) -> None:
        ran: list[Any] = []

        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(cls, inner: torch.Tensor) -> Any:
                made = torch.Tensor._make_wrapper_subclass(
                    cls, inner.shape, dtype=inner.dtype, device="cpu", dispatch_device=True
                )
                made.inner = inner
                return made

            @classmethod
            def __torch_dispatch__(cls, func: Any, *rest: Any, **more: Any) -> Any:
                ran.append(func)
                if func is torch.ops.prim.device.default:
                    return torch.device("cpu")
                raise NotImplementedError(func)

        class Real(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, func: Any, *rest: Any, **more: Any) -> Any:
                ran.append(func)
                raise NotImplementedError(func)

        inner = torch.zeros(100)
        wrapper = Wrapper(inner)
        real = torch.Tensor._make_subclass(Real, torch.zeros(25))
        ran.clear()
        assert sized([wrapper, inner, real]) == [None, 400, 100]
        assert ran == []

    @pytest.mark.skipif(
        not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"), reason="torch shows no hooks"
    )
    def test_hooks_of_saved_tensors(self) -> None:
        ran: list[str] = []

        def unpack(packed: Any) -> Any:
            ran.append("unpack")
            return packed[1]

        class Mine(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x)
                ctx.aside = extra
                ctx.more = [also]
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                return grad

            @property
            def next_functions(self) -> Any:
                ran.append("next_functions")
                return ()

        extra, also = torch.zeros(50), torch.zeros(60)
        leaf = torch.ones(4, requires_grad=True)
        with saved_tensors_hooks(lambda x: ("packed", x), unpack):
            result = Mine.apply(leaf.exp())
            built_in = leaf.exp().sin()
        ((_, kept),) = autograd_edges([result])
        assert ran == []
        assert any(one is extra for one in kept) and any(one is also for one in kept)
        assert any(one is leaf for one in kept)
        ((_, kept),) = autograd_edges([built_in])
        assert ran == [] and any(one.shape == (4,) and one is not leaf for one in kept)
        built_in.sum().backward()
        assert ran, "they would have run"


class TestNative:
    def test_python_explains_itself(self, way: str) -> None:
        alone = torch.zeros(10)
        base = torch.zeros(10)
        views = [base[1:], base[2:]]
        orphan = torch.zeros(10)[3:]
        twins = list(torch.zeros(10).split(5))
        assert natives(alone, base, *views, orphan, *twins) == [0] * 7
        assert natives(views[0]) == [1], "the other view is native as far as was told"

    def test_a_storage_object_that_nobody_was_told_of(self) -> None:
        tensor = torch.zeros(10)
        tensor.untyped_storage()
        assert natives(tensor) == [0]
        storage = tensor.untyped_storage()
        assert natives(tensor, storage) == [0, 0]

    @counts_tensors
    def test_what_native_code_holds(self) -> None:
        leaf = torch.zeros(10, requires_grad=True)
        assert natives(leaf) == [0]
        result = leaf * leaf
        assert natives(leaf)[0] >= 2, "saved twice"
        (edge,) = autograd_edges([result])
        assert any(one is leaf for one in edge[1])
        del edge, result
        assert natives(leaf) == [0]

    @counts_tensors
    def test_saved_data_counts_against_the_storage(self) -> None:
        leaf = torch.zeros(10, requires_grad=True)
        result = leaf.exp()
        assert natives(result) == [1], "exp keeps its result's data"
        ((_, kept),) = autograd_edges([result])
        assert {one.key for one in probe(kept)} == {one.key for one in probe([result, leaf])}


class TestAutograd:
    def test_shared_graphs_are_told_for_each(self) -> None:
        weight = torch.zeros(5, requires_grad=True)
        losses = [(weight * i).sum() for i in range(3)]
        plain = torch.zeros(3)
        edges = autograd_edges([plain, *losses, weight])
        assert [i for i, _ in edges] == [1, 2, 3]
        assert all(any(one is weight for one in kept) for _, kept in edges)

    def test_gradients_hang_on_their_leaf(self) -> None:
        weight = torch.zeros(5, requires_grad=True)
        (weight * 2).sum().backward()
        assert [(i, kept[0] is weight.grad) for i, kept in autograd_edges([weight])] == [(0, True)]

    @pytest.mark.filterwarnings("error")
    def test_a_result_that_retains_its_gradient(self) -> None:
        result = torch.zeros(5, requires_grad=True) * 2
        autograd_edges([result])
        result.retain_grad()
        result.sum().backward()
        ((_, kept),) = autograd_edges([result])
        assert any(one is result.grad for one in kept)

    def test_a_deep_graph_and_its_bound(self) -> None:
        x = torch.zeros(2, requires_grad=True)
        steps = [x]
        for _ in range(20_000):
            steps.append(steps[-1] * 1.0)
        ((_, kept),) = autograd_edges([steps[-1]])
        assert any(one is x for one in kept)
        begun = time.thread_time()
        edges = autograd_edges(steps[1:])
        assert time.thread_time() - begun < 5, "bounded, though the sum of all paths is not"
        assert any(one is x for one in edges[0][1])

    def test_a_used_up_graph(self) -> None:
        leaf = torch.ones(3, requires_grad=True)
        result = leaf.exp()
        result.sum().backward()
        assert [[one is leaf for one in kept] for _, kept in autograd_edges([result])] == [[True]]


class TestLeavesNothing:
    def test_objects_and_reference_counts_stay(self) -> None:
        tensors = [torch.zeros(4) for _ in range(2000)]
        leaf = torch.ones(3, requires_grad=True)
        graph = [leaf.exp() * leaf for _ in range(10)]
        probe(tensors + graph), autograd_edges(graph)
        gc.collect()
        objects = [*tensors, *graph, leaf, torch.Tensor]
        before = [sys.getrefcount(one) for one in objects]
        tracked = len(gc.get_objects())
        probe(tensors)
        probe(graph)
        autograd_edges(graph)
        gc.collect()
        assert abs(len(gc.get_objects()) - tracked) < 20
        assert [sys.getrefcount(one) for one in objects] == before

    def test_the_collector_waits_and_is_as_it_was(self) -> None:
        began: list[str] = []
        tensors = [torch.zeros(1) for _ in range(5_000)]
        gc.callbacks.append(lambda phase, _: began.append(phase))
        try:
            probe(tensors)
            assert began == [] and gc.isenabled()
            gc.disable()
            probe(tensors)
            assert not gc.isenabled()
        finally:
            gc.callbacks.pop()
            gc.enable()

    def test_a_hundred_thousand_tensors(self) -> None:
        tensors = [torch.zeros(1) for _ in range(100_000)]
        found = probe(tensors)
        assert [one.bytes for one in found if one is not None] == [4] * len(tensors)
        assert len({one.key for one in found if one is not None}) == len(tensors)


def test_a_module_called_torch_that_is_none(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert probe([1]) == [None] and autograd_edges([1]) == []
    assert all(one.__module__.split(".")[0] != "torch" for one in candidate_types())
