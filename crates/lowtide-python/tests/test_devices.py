"""Devices: which one is chosen, what it reports, and that asking initialises nothing."""

from __future__ import annotations

import subprocess
import sys
import types
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch as real_torch
from kernel import has_accelerator
from lowtide import _native
from lowtide._devices import choose, cpu as cpu_device, cuda as cuda_device, cuda_pools
from lowtide._devices.accelerator import AcceleratorDevice
from lowtide._devices.choose import device_of
from lowtide._devices.cpu import CpuDevice
from lowtide._devices.cuda import CudaDevice
from lowtide._native import (
    AllocatorCounts,
    LedgerKind,
    LedgerLine,
    NvmlUsage,
    ProcessUsage,
    Usage,
)
from lowtide._rungs.all import hooks_of
from lowtide._runtime.torch import absent, torch

MIB = 1 << 20


class Context:
    """CUDA as torch shows it, with books; whatever would initialise it says so loudly."""

    def __init__(self, initialised: bool = True) -> None:
        self.initialised = initialised
        self.contexts = {0} if initialised else set()
        self.allocated, self.reserved = 3 * MIB, 10 * MIB
        self.fraction = 1.0
        self.capturing = False
        self.inert = False
        self.calls: list[str] = []
        self.segments: list[dict[str, Any]] = []
        self.graph = type("graph", (), {"default_capture_stream": None})
        self.memory = self
        self.use_mem_pool = use_mem_pool

    def _touch(self, what: str) -> None:
        assert self.initialised, f"{what} would initialise CUDA"
        self.calls.append(what)

    def is_initialized(self) -> bool:
        return self.initialised

    def get_device_properties(self, index: int) -> Any:
        self._touch("properties")
        return SimpleNamespace(uuid="aa-bb", total_memory=100 * MIB)

    def _get_nvml_device_index(self, index: int) -> int:
        return [3, 1][index]

    def _raw_device_uuid_nvml(self) -> list[str]:
        return ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]

    def mem_get_info(self, index: int) -> tuple[int, int]:
        assert index in self.contexts, "mem_get_info would create a context"
        return 60 * MIB, 100 * MIB

    def memory_stats_as_nested_dict(self, index: int) -> Any:
        self._touch("stats")
        return {
            "allocated_bytes": {"all": {"current": self.allocated}},
            "reserved_bytes": {"all": {"current": self.reserved}},
        }

    def memory_snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        self._touch("snapshot")
        return self.segments

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def empty_cache(self) -> None:
        self._touch("empty_cache")
        if not self.inert:
            self.reserved = self.allocated

    def get_per_process_memory_fraction(self, index: int) -> float:
        self._touch("get fraction")
        return self.fraction

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self._touch("set fraction")
        self.fraction = int(fraction * 100 * MIB) / (100 * MIB)

    def reset_peak_memory_stats(self, index: int) -> None:
        self._touch("reset peak")

    def reset_accumulated_memory_stats(self, index: int) -> None:
        self._touch("reset accumulated")


@contextmanager
def use_mem_pool(pool: object) -> Any:
    yield


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a torch with CUDA in place of the real one."""

    def put(initialised: bool = True, devices: int = 2) -> Context:
        context = Context(initialised)
        fake = types.ModuleType("torch")
        vars(fake).update(
            Tensor=object,
            cuda=context,
            device=real_torch.device,
            _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda i: i in context.contexts),
            accelerator=SimpleNamespace(
                current_accelerator=lambda: real_torch.device("cuda"),
                device_count=lambda: devices,
                current_device_index=lambda: (
                    1 if context.initialised else pytest.fail("initialises")
                ),
                synchronize=lambda index: context.calls.append(f"synchronize {index}"),
                empty_cache=context.empty_cache,
            ),
        )
        monkeypatch.setitem(sys.modules, "torch", fake)
        monkeypatch.setattr(choose, "_devices", {})
        return context

    return put


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(**functions: Any) -> None:
        for module in (cpu_device, cuda_device):
            for name in functions.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, functions[name])

    return put


def segment(pool: tuple[int, int], allocated: int, total: int, device: int = 0) -> dict[str, Any]:
    return {
        "device": device,
        "segment_pool_id": pool,
        "allocated_size": allocated,
        "active_size": allocated,
        "total_size": total,
    }


class TestWhichDevice:
    @pytest.fixture(autouse=True)
    def _nobody_has_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LOWTIDE_DEVICE", raising=False)

    def test_importing_devices_imports_no_torch(self) -> None:
        program = (
            "import sys; from lowtide._devices import cuda, cpu, accelerator;"
            "from lowtide._devices.choose import device_of; from lowtide._rungs import all;"
            "from lowtide._why import why; from lowtide._why.memory import probe;"
            "assert device_of() is None and device_of('cuda:0') is None and device_of(0) is None;"
            "assert device_of('cpu').name == 'cpu';"
            "assert probe.probe([1, 'a']) == [None, None] and probe.candidate_types() == [];"
            "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    def test_torch_that_is_still_being_imported_is_not_there(self, monkeypatch: Any) -> None:
        half = types.ModuleType("torch")
        monkeypatch.setitem(sys.modules, "torch", half)
        assert torch() is None, "a folder called torch"
        vars(half).update(Tensor=object, __spec__=SimpleNamespace(_initializing=True))
        assert torch() is None
        half.__spec__._initializing = False  # type: ignore[union-attr]
        assert torch() is half

    def test_no_device_is_no_error(self) -> None:
        if has_accelerator():
            pytest.skip("this machine has an accelerator")
        assert device_of() is None
        assert device_of("cuda:0") is None
        assert device_of(real_torch.device("cuda", 1)) is None
        assert device_of("xpu") is None
        assert not real_torch.cuda.is_initialized()

    def test_what_is_no_device_is_an_error_that_says_what_to_say(self) -> None:
        with pytest.raises(ValueError, match="say 'cuda:0', 'cuda' or 'cpu'"):
            device_of("gpu")
        with pytest.raises(ValueError, match="say 'cuda:0'"):
            device_of("cuda:one")
        with pytest.raises(TypeError, match="not float"):
            device_of(1.5)

    def test_cpu_only_when_asked(self, monkeypatch: Any) -> None:
        assert isinstance(device_of("cpu"), CpuDevice)
        assert device_of(real_torch.device("cpu")) is device_of("cpu")
        monkeypatch.setenv("LOWTIDE_DEVICE", "cpu")
        assert device_of() is device_of("cpu")
        device = device_of("cpu")
        assert device_of(device) is device

    def test_one_object_per_device_and_the_current_index(self, cuda: Any) -> None:
        context = cuda()
        assert device_of().name == "cuda:1"
        assert device_of("cuda") is device_of("cuda:1") is device_of(1)
        assert device_of("cuda:0") is device_of(real_torch.device("cuda", 0))
        context.initialised = False
        assert device_of().name == "cuda:0", "before it is initialised the current one is the first"
        with pytest.raises(ValueError, match="torch has 2 devices"):
            device_of("cuda:2")
        assert device_of("xpu:0") is None

    def test_no_visible_device(self, cuda: Any) -> None:
        cuda(devices=0)
        assert device_of() is None and device_of("cuda:3") is None

    def test_absent(self) -> None:
        assert absent("sys") is None
        assert absent("onnxruntime_of_nobody") == "onnxruntime_of_nobody is not installed"
        assert absent("this") == "this is not imported"


class TestTorchBefore26:
    """A torch without `torch.accelerator`, which came with 2.6."""

    @pytest.fixture
    def old(self, cuda: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.delenv("LOWTIDE_DEVICE", raising=False)

        def put(devices: int = 2, **arguments: Any) -> Context:
            context = cuda(devices=devices, **arguments)
            del sys.modules["torch"].accelerator  # type: ignore[attr-defined]
            context.device_count = lambda: devices
            context.current_device = lambda: 1
            context.synchronize = lambda index: context.calls.append(f"synchronize {index}")
            return context

        return put

    def test_devices_are_chosen_as_ever(self, old: Any) -> None:
        context = old()
        assert device_of().name == "cuda:1" and device_of("cuda:0").name == "cuda:0"
        with pytest.raises(ValueError, match="torch has 2 devices"):
            device_of("cuda:2")
        context.initialised = False
        assert device_of().name == "cuda:0"
        old(devices=0)
        assert device_of() is None and device_of("cuda") is None and device_of("mps") is None

    def test_it_trims_and_synchronises(self, old: Any) -> None:
        context = old()
        device = CudaDevice("cuda:0", 0)
        assert device.trim() == 7 * MIB
        device.synchronize()
        assert context.calls[-1] == "synchronize 0"
        properties = SimpleNamespace(total_memory=100 * MIB)
        context.get_device_properties = lambda index: properties
        assert device.uuid() == "GPU-3", "properties have no UUID in torch 2.1"

    def test_mps_and_xpu(self, old: Any) -> None:
        old(devices=0)
        calls: list[str] = []
        fake = sys.modules["torch"]
        mps = SimpleNamespace(
            driver_allocated_memory=lambda: 5,
            current_allocated_memory=lambda: 3,
            recommended_max_memory=lambda: 100,
            empty_cache=lambda: calls.append("empty"),
            synchronize=lambda: calls.append("synchronize"),
        )
        available = SimpleNamespace(is_available=lambda: True)
        vars(fake).update(mps=mps, backends=SimpleNamespace(mps=available))
        device = device_of()
        assert device.name == "mps:0" and device.counts() == AllocatorCounts(3, 5)
        device.synchronize()
        device.trim()
        assert calls == ["synchronize", "empty"]
        xpu = SimpleNamespace(
            device_count=lambda: 1,
            is_initialized=lambda: True,
            current_device=lambda: 0,
            synchronize=lambda index: calls.append(f"xpu {index}"),
            memory_allocated=lambda index: 1,
            memory_reserved=lambda index: 2,
            mem_get_info=lambda index: (60, 100),
        )
        vars(fake).update(xpu=xpu)
        device = device_of("xpu:0")
        assert device.usage() == Usage(100, 60) and device.counts() == AllocatorCounts(1, 2)
        device.synchronize()
        assert calls[-1] == "xpu 0"

    def test_releases_say_no_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import lowtide

        if has_accelerator():
            pytest.skip("this machine has an accelerator")
        monkeypatch.delenv("LOWTIDE_DEVICE", raising=False)
        monkeypatch.delattr(real_torch, "accelerator", raising=False)
        assert lowtide.empty_device_cache().verdict == "no-device"
        runner = SimpleNamespace(model=real_torch.zeros(10))
        assert lowtide.shutdown(runner).verdict == "no-device"
        assert runner.model is None, "dropped all the same (R8)"


class TestCpu:
    def test_the_numbers_are_the_native_ones(self, native: Any) -> None:
        counts = iter([(5, 30), (0, 0)])
        memory = SimpleNamespace(total_bytes=100, free_bytes=40, own_bytes=7)
        trimmed = []

        def trim() -> None:
            trimmed.append(1)
            memory.own_bytes -= 5

        native(
            process_memory=lambda: memory,
            malloc_counts=lambda: AllocatorCounts(*next(counts)),
            malloc_trim=trim,
        )
        device = CpuDevice()
        assert device.usage() == Usage(100, 40) and device.own() == 7
        assert device.others() == [ProcessUsage("the kernel and other processes", 53)]
        assert device.lines() == [
            LedgerLine(LedgerKind.LIVE, "cpu allocator", 5),
            LedgerLine(LedgerKind.CACHED, "cpu allocator", 25),
        ]
        assert device.trim() == 5 and trimmed == [1], "what the kernel says"
        assert device.lines() == []
        assert device.settings() == [] and device.why_not_trim() is None


class TestCuda:
    def test_nothing_is_initialised_by_asking(self, cuda: Any, native: Any) -> None:
        context = cuda(initialised=False)
        asked = []
        told = NvmlUsage(Usage(100, 90), None, [ProcessUsage("pid 7", 3)])
        native(
            nvml_usage=lambda uuid: asked.append(uuid) or told,
            nvml_memory=lambda uuid: asked.append(uuid) or told.usage,
        )
        device = CudaDevice("cuda:0", 0)
        assert device.usage() == Usage(100, 90)
        assert device.others() == [ProcessUsage("pid 7", 3)]
        assert set(asked) == {"GPU-3"}, "by UUID, through CUDA_VISIBLE_DEVICES"
        assert (
            device.counts() == AllocatorCounts(0, 0) and device.lines() == [] and device.trim() == 0
        )
        assert device.why_not_trim() is None and device.settings() == [] and device.own() is None
        device.synchronize()
        for hook in hooks_of(device):
            if hook.point in (_native.HookPoint.LIBRARIES, _native.HookPoint.FALLBACK):
                assert hook.missing() is not None, hook
        assert context.calls == []

    def test_uuid_as_nvml_spells_it(self, cuda: Any) -> None:
        cuda()
        assert CudaDevice("cuda:0", 0).uuid() == "GPU-aa-bb"

    def test_without_nvml_cuda_is_asked_only_where_there_is_a_context(
        self, cuda: Any, native: Any
    ) -> None:
        cuda()

        def none(uuid: str) -> None:
            raise OSError("libnvidia-ml.so.1 is not there")

        native(nvml_usage=none, nvml_memory=none)
        assert CudaDevice("cuda:0", 0).usage() == Usage(100 * MIB, 60 * MIB)
        other = CudaDevice("cuda:1", 1)
        with pytest.raises(RuntimeError, match="would create a context"):
            other.usage()
        assert other.own() is None and other.others() == []

    def test_synchronising_makes_no_context_and_spoils_no_capture(self, cuda: Any) -> None:
        context = cuda()
        CudaDevice("cuda:1", 1).synchronize()
        assert context.calls == []
        CudaDevice("cuda:0", 0).synchronize()
        assert context.calls == ["synchronize 0"]
        context.capturing = True
        with pytest.raises(RuntimeError, match="captured"):
            CudaDevice("cuda:0", 0).synchronize()

    def test_a_capture_on_another_thread_is_seen_by_its_stream(self, cuda: Any) -> None:
        context = cuda()
        current = []

        @contextmanager
        def stream(one: object) -> Any:
            current.append(one)
            yield
            current.pop()

        context.stream = stream
        context.graph.default_capture_stream = "side"
        context.is_current_stream_capturing = lambda: current == ["side"]
        assert "being captured" in CudaDevice("cuda:0", 0).why_not_trim()
        assert current == []

        def refused() -> bool:
            raise RuntimeError("operation not permitted when stream is capturing")

        context.is_current_stream_capturing = refused
        assert "being captured" in CudaDevice("cuda:0", 0).why_not_trim()

    def test_trim(self, cuda: Any) -> None:
        context = cuda()
        device = CudaDevice("cuda:0", 0)
        assert device.trim() == 7 * MIB
        assert device.trim() == 0, "a second one is harmless"
        context.reserved, context.inert = 10 * MIB, True
        context.segments = [segment((0, 0), 0, 7 * MIB), segment((0, 0), 3 * MIB, 3 * MIB)]
        with pytest.raises(RuntimeError, match=f"{7 * MIB} bytes are wholly free"):
            device.trim()
        context.segments = [segment((0, 0), 3 * MIB, 10 * MIB)]
        assert device.trim() == 0, "split segments cannot be given back, and that is no error"

    def test_an_active_pool_makes_trimming_inert(self, cuda: Any) -> None:
        context = cuda()
        device = CudaDevice("cuda:0", 0)
        context.inert = True
        context.segments = [segment((0, 0), 0, 7 * MIB), segment((0, 0), 3 * MIB, 3 * MIB)]
        unused = use_mem_pool("pool")
        with pytest.raises(RuntimeError, match="in another thread"):
            device.trim()
        with use_mem_pool("pool"):
            with pytest.raises(RuntimeError, match="MemPool is active"):
                device.trim()
            context.segments = [segment((0, 0), 3 * MIB, 10 * MIB)]
            assert device.trim() == 0, "nothing could be given back anyway"
        del unused

    def test_workers_are_part_of_the_program(
        self, cuda: Any, native: Any, monkeypatch: Any
    ) -> None:
        cuda()
        device = CudaDevice("cuda:0", 0)
        listed = [ProcessUsage("pid 7", 3), ProcessUsage("pid 8", 40), ProcessUsage("pid 9", 2)]
        told = NvmlUsage(Usage(100, 10), None, listed)
        native(nvml_usage=lambda uuid: told)
        assert device.own() is None and len(device.others()) == 3
        monkeypatch.setattr(cuda_device, "pids", lambda: [8, 5])
        # Process 9 was started by worker 8.
        monkeypatch.setattr(cuda_device, "worker_of", lambda pid, _: 8 if pid in (8, 9) else None)
        assert device.own() == 42, "this process itself does not use the device"
        assert device.worker_memory(8) == 42 and device.worker_memory(5) == 0
        assert device.worker_bytes() == 0, "the tests' processes are no workers"
        assert device.others() == [ProcessUsage("pid 7", 3)]
        monkeypatch.setattr(cuda_device, "pids", list)
        monkeypatch.setattr(cuda_device, "LISTED_S", 0.0)
        told = NvmlUsage(Usage(100, 52), None, [ProcessUsage("pid 7", 3)])
        assert device.own() == 0, "it is known by now, and the worker's end can be seen"

    def test_where_nvml_knows_no_worker_nothing_is_made_up(
        self, cuda: Any, native: Any, monkeypatch: Any
    ) -> None:
        cuda()
        device = CudaDevice("cuda:0", 0)
        native(nvml_usage=lambda uuid: NvmlUsage(Usage(100, 10), None, []))
        monkeypatch.setattr(cuda_device, "pids", lambda: [8])
        assert device.own() is None and device.worker_memory(8) is None

    def test_the_counters_are_those_of_torch(self, cuda: Any) -> None:
        context = cuda()
        device = CudaDevice("cuda:0", 0)
        assert device.counters() is None and device.activity() is None, "this torch counts nothing"
        counted = {"allocation": {"all": {"allocated": 5, "freed": 3}}}
        context.memory_stats_as_nested_dict = lambda index: counted
        assert device.counters() == (5, 3) == device.activity()
        context.initialised = False
        assert device.counters() is None

    def test_the_ledger_adds_up_and_shows_graphs_apart(self, cuda: Any, monkeypatch: Any) -> None:
        context = cuda()
        context.segments = [
            segment((0, 0), 2, 20),
            segment((0, 0), 10, 10),
            segment((7, 0), 1, 100),
            segment((0, 4), 5, 200),
            segment((0, 5), 6, 300),
            segment((0, 0), 9, 1000, device=1),
        ]
        monkeypatch.setattr(cuda_device, "graph_pools", lambda: {(0, 4)})
        lines = CudaDevice("cuda:0", 0).lines()
        assert lines == [
            LedgerLine(LedgerKind.LIVE, "torch", 12),
            LedgerLine(LedgerKind.CACHED, "torch", 18),
            LedgerLine(LedgerKind.GRAPHS, "captured graphs, pool (0, 4)", 200),
            LedgerLine(LedgerKind.LIVE, "torch MemPool (0, 5)", 6),
            LedgerLine(LedgerKind.CACHED, "torch MemPool (0, 5)", 294),
            LedgerLine(LedgerKind.GRAPHS, "captured graphs, pool (7, 0)", 100),
        ]
        assert sum(line.bytes for line in lines) == 630

        def none(include_traces: bool) -> None:
            raise RuntimeError("cudaMallocAsync does not yet support getPoolUseCount")

        context.memory_snapshot = none
        lines = CudaDevice("cuda:0", 0).lines()
        assert sum(line.bytes for line in lines) == context.reserved

    def test_an_older_snapshot_without_the_flag(self, cuda: Any) -> None:
        context = cuda()
        context.memory_snapshot = lambda: [segment((0, 0), 1, 3)]
        lines = CudaDevice("cuda:0", 0).lines()
        assert [(line.kind, line.bytes) for line in lines] == [
            (LedgerKind.LIVE, 1),
            (LedgerKind.CACHED, 2),
        ]

    def test_the_fraction_comes_back_to_the_byte(self, cuda: Any) -> None:
        context = cuda()
        context.fraction = 30_000_004 / (100 * MIB)
        (fraction,) = CudaDevice("cuda:0", 0).settings()
        before = context.fraction
        for _ in range(100):
            restore = fraction.lower()
            assert context.fraction == 0.03, "what is live, and nothing above it"
            fraction.reset_statistics()
            restore()
        assert context.fraction == before
        assert {"reset peak", "reset accumulated"} <= set(context.calls)


class TestRealTorch:
    """What is tried above against a double is there, by these names, in the torch at hand."""

    def test_names(self) -> None:
        if not hasattr(real_torch, "accelerator"):
            pytest.skip("torch before 2.6 lacks some of them, and the package asks first")
        cuda = real_torch.cuda
        for name in [
            "is_initialized",
            "get_device_properties",
            "mem_get_info",
            "memory_stats_as_nested_dict",
            "memory_snapshot",
            "is_current_stream_capturing",
            "stream",
            "empty_cache",
            "ipc_collect",
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "_get_nvml_device_index",
            "_raw_device_uuid_nvml",
        ]:
            assert callable(getattr(cuda, name)), name
        assert callable(cuda.memory.get_per_process_memory_fraction)
        assert callable(cuda.memory.set_per_process_memory_fraction)
        assert callable(real_torch.accelerator.empty_cache)
        assert "default_capture_stream" in vars(cuda.graph)
        assert cuda.use_mem_pool.__wrapped__.__code__.co_name == "use_mem_pool"
        plans = vars(type(real_torch.backends.cuda.cufft_plan_cache))
        assert "__getitem__" in plans
        assert {"size", "clear"} <= set(vars(real_torch.backends.cuda.cuFFTPlanCache))

    def test_native_names(self) -> None:
        native = real_torch._C
        if not hasattr(native, "_cuda_init"):
            pytest.skip("this torch was built without CUDA")
        if not hasattr(native, "_MemPool"):
            pytest.skip("this torch has no memory pools")
        assert callable(native._cuda_clearCublasWorkspaces)
        assert callable(native._cuda_hasPrimaryContext)
        assert callable(native._CUDAGraph.pool) and isinstance(native._MemPool.id, property)
        assert not cuda_device.pools_in_use(real_torch)
        if not real_torch.cuda.is_initialized():
            assert cuda_pools.graph_pools() == set() and cuda_pools.snapshot() == []

    def test_a_real_device_that_is_not_there_is_asked_in_vain_and_stays_so(self) -> None:
        if real_torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
        device = CudaDevice("cuda:0", 0)
        with pytest.raises(RuntimeError, match="would create a context"):
            device.usage()
        assert (
            device.counts() == AllocatorCounts(0, 0) and device.lines() == [] and device.trim() == 0
        )
        assert device.own() is None and device.others() == [] and device.settings() == []
        assert device.why_not_trim() is None
        device.synchronize()
        assert not real_torch.cuda.is_initialized()


class TestOtherAccelerators:
    def test_one_like_mps(self, cuda: Any, monkeypatch: Any) -> None:
        cuda()
        books = {"driver": 50}
        mps = SimpleNamespace(
            recommended_max_memory=lambda: 100,
            driver_allocated_memory=lambda: books["driver"],
            current_allocated_memory=lambda: 20,
            empty_cache=lambda: books.update(driver=20),
        )
        sys.modules["torch"].mps = mps  # type: ignore[attr-defined]
        device = AcceleratorDevice("mps:0", 0, "mps")
        assert device.usage() == Usage(100, 50) and device.own() == 50
        assert device.counts() == AllocatorCounts(20, 50)
        assert device.trim() == 30 and device.counts() == AllocatorCounts(20, 20)

    def test_one_that_was_not_touched(self, cuda: Any) -> None:
        cuda()
        xpu = SimpleNamespace(is_initialized=lambda: False)
        sys.modules["torch"].xpu = xpu  # type: ignore[attr-defined]
        device = AcceleratorDevice("xpu:0", 0, "xpu")
        assert (
            device.counts() == AllocatorCounts(0, 0) and device.trim() == 0 and device.lines() == []
        )
        device.synchronize()
        with pytest.raises(RuntimeError, match="would initialise"):
            device.usage()
