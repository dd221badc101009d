"""The hooks of Python and torch, each with real memory to free."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import lowtide
import pytest
import torch
from alone import in_a_fork
from lowtide._devices.cpu import CpuDevice
from lowtide._devices.cuda import CudaDevice
from lowtide._native import AllocatorCounts, HookPoint, Touch
from lowtide._release.teardown import unfreezing
from lowtide._rungs import caches, libraries, registered, registry
from lowtide._rungs.all import hooks_of
from lowtide._rungs.caches import CompileCaches, LruCaches, RegisteredCaches, StoredTracebacks
from lowtide._rungs.collector import Collector
from lowtide._rungs.hook import Hook, PartlyDone
from lowtide._rungs.libraries import FftPlans, IpcLeftovers, ProcessGroups, Workspaces
from lowtide._rungs.registered import ModelsToHost, Sessions
from lowtide._runtime.heap import frozen_count

CPU = CpuDevice()


def pairs(touched: list[Touch]) -> list[tuple[str, int | None]]:
    """What was touched, with bytes, as tuples."""
    return [(touch.what, touch.bytes) for touch in touched]


def ran(hook: Hook, round: int) -> list[tuple[str, int | None]]:
    """Runs a hook; what it touched."""
    return pairs(hook.run(round))


class Thing:
    """Something that dies visibly."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "models", registry.Registered("model"))
    monkeypatch.setattr(registry, "sessions", registry.Registered("session"))
    monkeypatch.setattr(registry, "caches", {})


@pytest.fixture
def no_collector() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestList:
    def test_places_and_order(self) -> None:
        hooks = hooks_of(CPU)
        assert {hook.point for hook in hooks} == {
            HookPoint.TO_HOST,
            HookPoint.SESSIONS,
            HookPoint.LIBRARIES,
            HookPoint.CACHES,
            HookPoint.COLLECT,
            HookPoint.CONTEXT_RESET,
            HookPoint.FALLBACK,
            HookPoint.EXIT,
        }
        names = [hook.name for hook in hooks if hook.point == HookPoint.LIBRARIES]
        assert names[0] == "process groups", "communicators before what they use"
        assert all(hook.limit_s > 0 and hook.name for hook in hooks)
        on_gpu = hooks_of(CudaDevice("cuda:0", 0))
        assert on_gpu[-1].point == HookPoint.SUSPEND, "nothing follows the suspend of this process"

    def test_what_does_not_apply_says_why(self) -> None:
        missing = {hook.name: hook.missing() for hook in hooks_of(CPU)}
        assert missing["models to host"] == "the device is host memory already"
        assert missing["cuBLAS workspaces"] and "not for cpu" in missing["cuBLAS workspaces"]
        assert missing["process groups"] and "process_groups=True" in missing["process groups"]
        assert missing["registered caches"] and "register_cache" in missing["registered caches"]
        assert missing["inference sessions"] and "register_session" in missing["inference sessions"]
        assert missing["Python's collector"] is None


class TestCollector:
    def dead_cycle(self) -> weakref.ref[Any]:
        a = Thing(tensor=torch.zeros(10))
        a.me = a  # type: ignore[attr-defined]
        return weakref.ref(a.tensor)  # type: ignore[attr-defined]

    def test_a_dead_cycle(self, no_collector: None) -> None:
        tensor = self.dead_cycle()
        assert tensor() is not None
        ((what, size),) = ran(Collector(), 0)
        assert tensor() is None and what.endswith("unreachable objects") and size is None
        assert ran(Collector(), 1) == [], "a second time there is nothing"

    def test_rounds_take_other_generations(self, monkeypatch: Any) -> None:
        asked: list[int] = []
        monkeypatch.setattr(gc, "collect", lambda generation: asked.append(generation) or 1)
        collector = Collector()
        for round in range(4):
            ran(collector, round)
        assert asked == [2, 1, 2, 0, 1, 2, 0, 1, 2]

    def test_after_a_round_that_found_nothing_only_young_objects_are_looked_at(
        self, monkeypatch: Any
    ) -> None:
        asked: list[int] = []
        found = iter([0, 3, 2, 0, 0])
        monkeypatch.setattr(
            gc, "collect", lambda generation: asked.append(generation) or next(found)
        )
        collector = Collector()
        ran(collector, 0)
        assert asked == [2]
        ran(collector, 1)
        assert asked == [2, 1], "the heap has no garbage but what has become some since"
        asked.clear()
        ran(collector, 0)
        assert asked == [2], "another release"
        ran(collector, 1)
        assert asked == [2, 1, 2], "the round before has found something"

    def test_a_short_round_looks_at_young_objects_alone(self, monkeypatch: Any) -> None:
        asked: list[int] = []
        monkeypatch.setattr(gc, "collect", lambda generation: asked.append(generation) or 1)
        for round in range(2):
            Collector().run_round(round, False)
        assert asked == [1, 1]

    def test_frozen_objects(self, no_collector: None) -> None:
        tensor = self.dead_cycle()
        gc.freeze()
        try:
            ran(Collector(), 0)
            assert tensor() is not None, "frozen objects are left alone"
            (step,) = unfreezing()
            assert "unfrozen; the frozen set was not restored" in step.path
            step.cut()
            ran(Collector(), 0)
            assert tensor() is None and frozen_count() == 0
        finally:
            gc.unfreeze()

    def test_garbage_is_named(self, no_collector: None) -> None:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            self.dead_cycle()
            touched = ran(Collector(), 0)
            assert any(type(one) is Thing for one in gc.garbage)
            assert (
                touched[-1][0] == f"{len(gc.garbage)} objects left in gc.garbage; clear that list"
            )
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


class TestTracebacks:
    @pytest.fixture(autouse=True)
    def last(self, monkeypatch: Any) -> None:
        for name in ("last_exc", "last_value", "last_traceback", "last_type"):
            monkeypatch.delattr(sys, name, raising=False)

    def failed(self) -> tuple[BaseException, weakref.ref[Any]]:
        held: list[weakref.ref[Any]] = []

        def inner() -> None:
            batch = Thing(tensor=torch.zeros(10))
            held.append(weakref.ref(batch))
            raise ValueError("inner")

        try:
            try:
                inner()
            except ValueError as cause:
                raise RuntimeError("outer") from cause
        except RuntimeError as error:
            return error, held[0]

    def store(self, error: BaseException) -> None:
        sys.last_value, sys.last_type, sys.last_traceback = error, type(error), error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error

    def test_all_names_go_and_the_locals_with_them(self) -> None:
        error, held = self.failed()
        self.store(error)
        del error
        gc.collect()
        assert held() is not None
        touched = [what for what, _ in ran(StoredTracebacks(), 0)]
        assert (
            held() is None and not hasattr(sys, "last_value") and not hasattr(sys, "last_traceback")
        )
        assert "sys.last_value" in touched and "sys.last_traceback" in touched
        assert ran(StoredTracebacks(), 0) == []

    def test_locals_go_even_where_somebody_keeps_the_error(self) -> None:
        import traceback

        error, held = self.failed()
        error.__context__ = None
        self.store(error)
        ran(StoredTracebacks(), 0)
        assert held() is None, "through __cause__ alone"
        assert "in inner" in "".join(traceback.format_exception(error)), "still printable"

    def test_running_frames_keep_theirs(self) -> None:
        mine = Thing()
        try:
            raise ValueError
        except ValueError as error:
            self.store(error)
        ran(StoredTracebacks(), 0)
        assert mine is not None and not hasattr(sys, "last_value")

    def test_a_suspended_generator_is_not_ended(self) -> None:
        ended: list[str] = []

        def serve() -> Any:
            kept = Thing()
            try:
                raise ValueError
            except ValueError as error:
                self.store(error)
            try:
                yield 1
                yield kept
            finally:
                ended.append("ended")

        generator = serve()
        next(generator)
        ran(StoredTracebacks(), 0)
        assert ended == [] and isinstance(next(generator), Thing)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
    def test_members_of_a_group(self) -> None:
        error, held = self.failed()
        self.store(ExceptionGroup("several", [error]))  # type: ignore[name-defined]  # noqa: F821
        ran(StoredTracebacks(), 0)
        assert held() is None

    def test_a_ring_of_causes_ends(self) -> None:
        error, _ = self.failed()
        assert error.__cause__ is not None
        error.__cause__.__context__ = error
        self.store(error)
        assert ran(StoredTracebacks(), 0)


class TestLruCaches:
    @pytest.fixture(params=[4, None])
    def size(self, request: Any) -> Any:
        return request.param

    def test_only_those_with_tensors_of_the_device(self, size: Any) -> None:
        @functools.lru_cache(maxsize=size)
        def weights(i: int) -> Any:
            return {"deep": [torch.zeros(100), (torch.zeros(10),)]}

        @functools.lru_cache(maxsize=size)
        def words(i: int) -> Any:
            return [str(i)]

        held = weakref.ref(weights(1)["deep"][0])
        weights(2), words(1), words(2)
        meant = [found for found in caches.caches_with_tensors("cpu") if "weights" in found.name]
        assert [found.bytes for found in meant] == [880]
        assert not any("weights" in one.name for one in caches.caches_with_tensors("cuda:0"))
        assert LruCaches(CPU).expect() >= 880
        touched = ran(LruCaches(CPU), 0)
        name = f"{__name__}.{weights.__qualname__} (functools.lru_cache)"
        assert (name, 880) in touched and held() is None
        assert weights.cache_info().currsize == 0 and words.cache_info().currsize == 2

    def test_a_bound_method_holds_its_runner(self, size: Any) -> None:
        class Runner:
            def __init__(self) -> None:
                self.model = torch.nn.Linear(10, 10)

            @functools.lru_cache(maxsize=size)  # noqa: B019
            def embed(self, text: str) -> int:
                return len(text)

        runner = Runner()
        runner.embed("text")
        held = weakref.ref(runner.model)
        del runner
        gc.collect()
        assert held() is not None
        assert (f"{__name__}.{Runner.embed.__qualname__} (functools.lru_cache)", 440) in ran(
            LruCaches(CPU), 0
        )
        gc.collect()
        assert held() is None

    @in_a_fork
    def test_one_that_is_frozen_is_found_too(self, size: Any) -> None:
        """A server freezes what it has imported."""

        @functools.lru_cache(maxsize=size)
        def weights(i: int) -> Any:
            return torch.zeros(100)

        weights(1)
        gc.freeze()
        assert any("weights" in touch[0] for touch in ran(LruCaches(CPU), 0))
        assert weights.cache_info().currsize == 0

    def test_a_tensor_that_only_the_function_knows_is_not_the_caches(self) -> None:
        constant = torch.zeros(10)

        @functools.lru_cache
        def shape(i: int, table: Any = constant) -> int:
            return constant.shape[0] + i

        shape(1)
        shape.constant = constant  # type: ignore[attr-defined]
        ran(LruCaches(CPU), 0)
        assert shape.cache_info().currsize == 1

    def test_no_code_of_the_users_runs_while_looking(self) -> None:
        ran: list[str] = []

        class Loud:
            def __init__(self) -> None:
                self.tensor = torch.zeros(5)

            def __eq__(self, other: object) -> bool:
                ran.append("eq")
                return self is other

            def __hash__(self) -> int:
                ran.append("hash")
                return 7

            def __getattribute__(self, name: str) -> Any:
                ran.append(name)
                return object.__getattribute__(self, name)

        @functools.lru_cache
        def of(one: Any) -> int:
            return 1

        of(Loud())
        ran.clear()
        assert any("of" in found.name for found in caches.caches_with_tensors("cpu"))
        assert ran == []
        of.cache_clear()


class TestCompileCaches:
    @in_a_fork
    def test_a_compiled_model(self) -> None:
        import torch._dynamo

        torch._dynamo.reset()
        hook = CompileCaches()
        assert hook.missing() is None
        assert ran(hook, 0) == [], "nothing was compiled"
        model = torch.nn.Linear(4, 4)
        compiled = torch.compile(model, backend="eager")
        first = compiled(torch.ones(2, 4))
        held = weakref.ref(model)
        ((what, _),) = ran(hook, 0)
        assert "compiled function" in what
        assert ran(hook, 0) == []
        assert torch.equal(compiled(torch.ones(2, 4)), first), "it compiles again"
        ran(hook, 0)
        del model, compiled
        gc.collect()
        if not hasattr(torch, "accelerator"):
            pytest.skip("the compiler of torch before 2.6 keeps the model after its reset")
        assert held() is None

    def test_not_imported(self, monkeypatch: Any) -> None:
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
        assert CompileCaches().missing() == "torch._dynamo is not imported"
        monkeypatch.delitem(sys.modules, "torch")
        assert CompileCaches().missing() == "torch is not imported"


class TestLibraries:
    @pytest.fixture
    def device(self, monkeypatch: Any) -> CudaDevice:
        """A CUDA device whose libraries hold 32 bytes in workspaces and 8 in blocks shared."""
        books = {"workspace": 32, "shared": 8, "plans": 2}

        class Plans:
            clear = staticmethod(lambda: books.update(plans=0))
            size = property(lambda _: books["plans"])

        fake = SimpleNamespace(
            Tensor=object,
            _C=SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: books.update(workspace=0)),
            backends=SimpleNamespace(cuda=SimpleNamespace(cufft_plan_cache=[Plans()])),
            cuda=SimpleNamespace(
                is_initialized=lambda: True, ipc_collect=lambda: books.update(shared=0)
            ),
        )
        monkeypatch.setitem(sys.modules, "torch", fake)
        device = CudaDevice("cuda:0", 0)
        monkeypatch.setattr(
            device,
            "counts",
            lambda: AllocatorCounts(100 + books["workspace"] + books["shared"], 500),
        )
        return device

    def test_each_says_what_it_freed_and_nothing_the_second_time(self, device: CudaDevice) -> None:
        told = {Workspaces: [32], FftPlans: [None], IpcLeftovers: [8]}
        for kind, sizes in told.items():
            hook = kind(device)
            assert hook.missing() is None
            assert [size for _, size in ran(hook, 0)] == sizes
            assert ran(hook, 1) == []
        assert Workspaces(device, point=HookPoint.FALLBACK).point == HookPoint.FALLBACK
        assert Workspaces(device).point == HookPoint.LIBRARIES


class TestProcessGroups:
    def test_a_real_group_goes_only_when_asked(self, tmp_path: Any) -> None:
        from torch import distributed

        if not distributed.is_available():
            pytest.skip("this torch has no torch.distributed")
        store = distributed.FileStore(str(tmp_path / "store"), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            assert ran(ProcessGroups(), 0) == [] and distributed.is_initialized()
            hook = ProcessGroups(asked=True)
            assert hook.missing() is None and hook.limit_s <= 20
            assert ran(hook, 0) == [("torch.distributed, gloo of 1 processes", None)]
            assert not distributed.is_initialized()
            assert ran(hook, 0) == [], "a second call is harmless"
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()

    def test_model_parallel_groups_then_the_environment_then_torch(self, monkeypatch: Any) -> None:
        order: list[str] = []
        alive = {"torch": True}

        def fails() -> None:
            order.append("environment")
            raise OSError("a peer is gone")

        vllm = SimpleNamespace(
            destroy_model_parallel=lambda: order.append("model parallel"),
            destroy_distributed_environment=fails,
        )
        fake = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: alive["torch"],
            get_backend=lambda: "nccl",
            get_world_size=lambda: 8,
            destroy_process_group=lambda: order.append("torch") or alive.update(torch=False),
        )
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", vllm)
        monkeypatch.setattr(libraries, "distributed", lambda: fake)
        receipt = self.release()
        assert order == ["model parallel", "environment", "torch"]
        rung = receipt.rung("libraries")
        assert rung is not None and rung.outcome == "failed"
        assert "a peer is gone" in (rung.why or "")
        touched = [touch.what for touch in rung.touched]
        assert touched[-1] == "torch.distributed, nccl of 8 processes"
        order.clear()
        self.release()
        assert order == ["model parallel", "environment"], "also where torch has no groups"

    def release(self) -> Any:
        from kernel import Caching

        device = Caching()
        device.hooks = lambda: None  # type: ignore[method-assign]
        return lowtide.release(process_groups=True, device=device)

    def test_engines_that_are_not_there_are_skipped_by_name(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(libraries, "distributed", lambda: None)
        rung = self.release().rung("libraries")
        said = "; ".join([*rung.skipped, rung.why or ""])
        for engine in ("vllm", "sglang", "megatron"):
            assert f"{engine} is not installed" in said, said
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
        rung = self.release().rung("libraries")
        said = "; ".join([*rung.skipped, rung.why or ""])
        assert "vllm.distributed.parallel_state is not imported" in said, said

    def test_one_that_hangs_is_left_behind_and_the_next_is_called(self, monkeypatch: Any) -> None:
        order: list[str] = []
        end = threading.Event()
        vllm = SimpleNamespace(
            destroy_model_parallel=lambda: end.wait(60),
            destroy_distributed_environment=lambda: order.append("environment"),
        )
        monkeypatch.setattr(libraries.EngineGroups, "limit_s", 0.1)
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", vllm)
        try:
            rung = self.release().rung("libraries")
        finally:
            end.set()
        assert order == ["environment"]
        assert "vllm destroy_model_parallel: did not end within 100 ms" in (rung.why or "")


class TestRegistry:
    def test_nothing_is_kept_alive(self) -> None:
        model = registry.register_model(torch.nn.Linear(2, 2), "encoder")
        session = registry.register_session(Thing(close=lambda: None), open=Thing)
        held = [weakref.ref(model), weakref.ref(session)]
        assert [entry.name for entry in registry.models.entries()] == ["encoder"]
        del model, session
        gc.collect()
        assert [one() for one in held] == [None, None]
        assert registry.models.entries() == [] and registry.sessions.entries() == []

    def test_what_cannot_be_registered_says_why(self) -> None:
        class Slots:
            __slots__ = ()

            def to(self, device: str) -> None:
                pass

        with pytest.raises(TypeError, match="no weak references"):
            registry.register_model(Slots())
        with pytest.raises(TypeError, match=r"no \.to\(device\)"):
            registry.register_model(3)
        with pytest.raises(TypeError, match="must be callable"):
            registry.register_cache("kv", None)  # type: ignore[arg-type]


class TestCaches:
    def test_methods_of_what_died_are_forgotten(self) -> None:
        class Runner:
            def __init__(self) -> None:
                self.kv = {"a": torch.zeros(10)}

            def clear(self) -> None:
                self.kv.clear()

        runner = Runner()
        registry.register_cache("kv", runner.clear, size=lambda: 40)
        hook = RegisteredCaches()
        assert hook.missing() is None and hook.expect() == 40
        assert ran(hook, 0) == [("cache kv", 40)] and runner.kv == {}
        held = weakref.ref(runner)
        del runner
        assert held() is None, "the registry keeps no runner"
        assert ran(hook, 0) == [] and registry.caches == {}

    def test_every_kind_of_callable(self) -> None:
        from collections import OrderedDict

        plain, ordered, done = {"a": 1}, OrderedDict(a=1), []
        registry.register_cache("plain", plain.clear)
        registry.register_cache("ordered", ordered.clear)
        remove = registry.register_cache("lambda", lambda: done.append(1))
        ran(RegisteredCaches(), 0)
        assert plain == {} and ordered == {} and done == [1]
        held = weakref.ref(ordered)
        del ordered
        assert held() is None
        remove()
        remove()
        assert ran(RegisteredCaches(), 0) == [("cache plain", None)] and done == [1]

    def test_one_that_fails_stops_nobody(self) -> None:
        def fails() -> None:
            raise OSError("disk")

        cleared: list[int] = []
        registry.register_cache("bad", fails)
        registry.register_cache("good", lambda: cleared.append(1))
        with pytest.raises(PartlyDone, match=r"cache bad: OSError: disk \(done: cache good\)"):
            ran(RegisteredCaches(), 0)
        assert cleared == [1]


class TestSessions:
    def test_an_onnx_session_is_emptied(self, monkeypatch: Any) -> None:
        class InferenceSession:
            def __init__(self) -> None:
                self._sess = Thing(memory=torch.zeros(10))
                self._inputs_meta = [self._sess]
                self._providers = ["CUDAExecutionProvider"]

        runtime = SimpleNamespace(InferenceSession=InferenceSession)
        monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
        session = registry.register_session(
            InferenceSession(), name="reranker", open=InferenceSession
        )
        held = weakref.ref(session._sess)
        hook = Sessions()
        assert hook.missing() is None
        assert ran(hook, 0) == [("session reranker", None)]
        assert held() is None and session._providers == ["CUDAExecutionProvider"]
        assert ran(hook, 0) == []
        assert pairs(hook.restore()) == [("session reranker", None)]
        assert session._inputs_meta == [session._sess] and hook.restore() == []

    def test_others_by_their_close(self) -> None:
        closed: list[str] = []

        class Engine:
            def close(self) -> None:
                closed.append("own")

        def fails(one: object) -> None:
            raise OSError("no")

        engine, other, bad = Engine(), Engine(), Thing()
        registry.register_session(engine, open=Engine)
        registry.register_session(other, close=lambda one: closed.append("given"), open=Engine)
        registry.register_session(bad, close=fails, name="bad", open=Thing)
        with pytest.raises(PartlyDone, match="session bad: OSError: no"):
            ran(Sessions(), 0)
        assert sorted(closed) == ["given", "own"]
        with pytest.raises(PartlyDone):
            ran(Sessions(), 0)
        assert len(closed) == 2, "what is closed is not closed again"
        with pytest.raises(TypeError, match="register it with close="):
            registry.register_session(Thing(), open=Thing)


class TestToHost:
    """The device is called "cpu" and the host "meta": what moves is what matters."""

    @pytest.fixture
    def device(self, monkeypatch: Any) -> Any:
        return SimpleNamespace(kind="cuda", name="cpu")

    class Model(torch.nn.Module):
        """Moves to "meta" when told to go to the host, and back empty: nothing else is on a CPU."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(10, 10)
            self.register_buffer("table", torch.zeros(100))
            self.moves: list[str] = []

        def to(self, device: str) -> Any:
            self.moves.append(device)
            if len(self.moves) % 2:
                return super().to("meta")
            return self.to_empty(device=device)

    @in_a_fork
    def test_there_and_back(self, device: Any) -> None:
        model = registry.register_model(self.Model(), "encoder")
        hook = ModelsToHost(device)
        assert hook.missing() is None and hook.expect() == 840
        assert ran(hook, 0) == [("model encoder", 840)]
        assert {one.device.type for one in model.parameters()} == {"meta"}
        assert ran(hook, 0) == [], "it is there already"
        assert hook.restore() == [Touch("model encoder", 840)]
        assert model.moves == ["cpu", "cpu"]
        assert {one.device.type for one in model.parameters()} == {"cpu"}
        assert hook.restore() == []

    def test_gradients_count_and_tied_weights_once(self, device: Any) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
        )
        model[1].weight = model[0].weight
        assert registered.size_on(model, "cpu") == 256
        model(torch.ones(8)).sum().backward()
        assert registered.size_on(model, "cpu") == 512
        assert registered.size_on(model, "cuda:0") == 0

    @in_a_fork
    def test_one_that_refuses_stops_nobody(self, device: Any) -> None:
        class Refuses(torch.nn.Linear):
            def to(self, device: str) -> Any:
                raise RuntimeError("You can't move a model that has some modules offloaded")

        bad = registry.register_model(Refuses(2, 2), "bad")
        good = registry.register_model(self.Model(), "good")
        with pytest.raises(PartlyDone, match="model bad: RuntimeError: You can't move") as failure:
            ran(ModelsToHost(device), 0)
        assert failure.value.touched == [Touch("model good", 840)]
        assert bad.weight.device.type == "cpu" and good.moves == ["cpu"]

    @in_a_fork
    def test_a_spread_model_is_spread_again(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        was = dict.fromkeys(("0.weight", "0.bias"), "meta") | dict.fromkeys(
            ("1.weight", "1.bias"), "cpu"
        )
        registered.put(model, was)
        assert registered.device_of_each_tensor(model) == was

    def test_something_with_to_that_is_no_module(self, device: Any) -> None:
        class Pipeline:
            def __init__(self) -> None:
                self.at = "cpu"
                self.moves: list[str] = []

            def to(self, device: str) -> None:
                self.moves.append(device)

        pipeline = registry.register_model(Pipeline())
        hook = ModelsToHost(device)
        assert ran(hook, 0) == [("model Pipeline", None)]
        hook.restore()
        assert pipeline.moves == ["cpu", "cpu"]


def test_every_hook_can_be_asked_and_run_twice(tmp_path: Any) -> None:
    for hook in hooks_of(CPU):
        if hook.missing() is not None:
            continue
        assert hook.expect() is None or hook.expect() >= 0
        for round in range(2):
            touched = ran(hook, round)
            assert all(isinstance(what, str) and (n is None or n >= 0) for what, n in touched)
