"""R1–R10: stages that use the device one after another."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import lowtide
import pytest
import torch
from kernel import DEVICE, MIB, SIZE, Caching, Piece, in_use, is_about, weights
from lowtide._devices import choose

pytestmark = pytest.mark.usefixtures("clean")


def test_r1_cached_memory_goes_back_to_the_driver() -> None:
    device = Caching()
    before = in_use()
    device.free(device.allocate())
    assert is_about(in_use() - before, SIZE), "freed, and still taken"
    receipt = lowtide.empty_device_cache(device)
    assert is_about(in_use(), before)
    assert receipt.verdict == "released"
    assert is_about(receipt.freed_bytes or 0, SIZE)


def test_r1_what_the_c_library_has_cached_goes_back_too() -> None:
    # Small enough for its heap, with one at the end that keeps the heap from shrinking by itself.
    # On a GPU it is torch that has them cached, in segments that many share.
    small = [weights(100_000) for _ in range(1000)]
    last = small.pop()
    before = in_use()
    del small
    assert before - in_use() < 16 * MIB, "freed, and still taken"
    receipt = lowtide.empty_device_cache(DEVICE)
    assert before - in_use() > 64 * MIB
    assert receipt.verdict == "released"
    del last


def run(code: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "LOWTIDE_DEVICE"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_r2_without_a_framework_it_says_no_device() -> None:
    said = run(
        "import sys, lowtide\n"
        "receipts = [lowtide.empty_device_cache(), lowtide.release()]\n"
        "assert 'torch' not in sys.modules\n"
        "print(*{receipt.verdict for receipt in receipts}, receipts[0].line())\n"
        "print(receipts[1])\n"
    )
    assert said.startswith("no-device empty_device_cache on no device: no-device"), said
    assert "torch is not imported" in said and "LOWTIDE_DEVICE=cpu" in said, said
    assert "`lowtide doctor`" in said, said


def test_r3_without_a_device_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWTIDE_DEVICE")
    monkeypatch.setattr(choose, "current_kind", lambda module: None)
    receipt = lowtide.empty_device_cache()
    assert (receipt.verdict, receipt.device, receipt.rungs) == ("no-device", None, [])
    assert not receipt.proved
    assert receipt.freed_bytes is None and "unknown" in str(receipt), "no number is made up"
    assert any("has no such device here" in line for line in receipt.advice), receipt.advice


class Parent:
    torn_down_with = -1

    def teardown(self) -> None:
        self.torn_down_with = in_use()


class Reranker(lowtide.Releasable, Parent):
    def __init__(self) -> None:
        self.model = weights()


class Generator(lowtide.Releasable):
    def __init__(self) -> None:
        self.engine = {"model": weights()}


@lowtide.releases("pipeline", "model")
class Compressor(Parent):
    def __init__(self) -> None:
        self.model = weights()
        self.pipeline = [self.model]


@lowtide.releases()
class Embedder:
    def __init__(self) -> None:
        self.whatever = weights()


@pytest.mark.parametrize("kind", [Reranker, Generator, Compressor, Embedder])
def test_r4_every_kind_of_module_is_torn_down_by_one_contract(kind: type) -> None:
    before = in_use()
    module = kind()
    assert is_about(in_use() - before, SIZE)
    receipt = module.teardown()
    assert is_about(in_use(), before), "while the module is kept"
    assert receipt.verdict == "released"
    if isinstance(module, Parent):
        assert is_about(module.torn_down_with, before), "the parent's comes last, after the trim"


def test_r4_the_trim_comes_after_the_model_and_before_the_parent() -> None:
    order = []

    class Model:
        def __del__(self) -> None:
            order.append("model")

    @lowtide.releases("model")
    class Module:
        def __init__(self) -> None:
            self.model = Model()

        def teardown(self) -> None:
            order.append("parent")

    receipt = Module().teardown()
    assert order == ["model", "parent"]
    assert [rung.rung for rung in receipt.rungs] == ["drop", "caches", "collect", "trim"]


def test_r4_who_else_holds_a_named_model_is_named() -> None:
    module = Compressor()
    beside = [module.model]
    receipt = module.teardown()
    assert receipt.verdict == "pinned"
    assert "beside" in receipt.holders[0].path
    assert beside and module.model is None


def test_r5_the_contract_is_a_context_manager_and_never_only_del() -> None:
    before = in_use()
    for kind in (Reranker, Generator, Compressor, Embedder):
        assert "__del__" not in vars(kind)
        with kind() as module:
            assert is_about(in_use() - before, SIZE)
        assert is_about(in_use(), before)
        del module


def test_r5_a_stage_ends_by_an_exception_too_and_does_not_mask_it() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = weights()

    def infer(model: Model) -> None:
        activations = weights()
        raise ValueError(f"bad input, {activations.nbytes}")

    before = in_use()
    stage = lowtide.stage("reranker", device=DEVICE)
    with pytest.raises(ValueError, match="bad input") as caught, stage:
        model = stage.own(Model())
        infer(model)
    # The exception is still here, and its frames hold nothing.
    assert caught.value.__traceback__ is not None
    assert is_about(in_use(), before)
    assert stage.receipt is not None
    assert stage.receipt.verdict == "released"
    assert model.weights is None, "a hollow shell stays with the caller"


def test_r5_an_end_that_fails_does_not_mask_the_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(objects: list[object], device: object) -> None:
        raise RuntimeError("no plan")

    monkeypatch.setattr(lowtide._stages.stage, "teardown_of", fails)
    with pytest.raises(ValueError, match="mine"), lowtide.stage("reranker", device=DEVICE):
        raise ValueError("mine")
    assert "RuntimeError: no plan" in caplog.text
    with pytest.raises(RuntimeError, match="no plan"), lowtide.stage("reranker", device=DEVICE):
        pass


class Module:
    def __init__(self, size: int) -> None:
        self.model = weights(size)


def test_r6_the_peak_is_the_largest_module_and_not_the_sum() -> None:
    before = in_use()
    stages = lowtide.Stages(DEVICE)
    sizes = [64 * MIB, 160 * MIB, 96 * MIB, 128 * MIB]
    kept = []
    for number, size in enumerate(sizes):
        with stages.stage(f"module {number}") as stage:
            kept.append(stage.load(Module, size))
            assert is_about(in_use() - before, size), "the earlier ones are gone"
        assert stage.receipt is not None
        assert stage.receipt.verdict == "released"
    report = stages.report()
    assert is_about(report.largest_bytes, max(sizes))
    assert is_about(report.sum_bytes, sum(sizes), 24 * MIB)
    assert is_about(report.peak_bytes - before, max(sizes))
    assert [one.name for one in report.stages] == [f"module {n}" for n in range(4)]


def test_r6_what_would_not_fit_is_refused_before_the_load() -> None:
    stages = lowtide.Stages(DEVICE, budget=in_use() + 64 * MIB)
    with stages.stage("small", needs="16 MiB"):
        pass
    loaded = False
    with (
        pytest.raises(
            lowtide.WouldNotFit, match=r'stage "large" does not fit: it needs 512.0 MiB.*budget'
        ),
        stages.stage("large", needs="512 MiB"),
    ):
        loaded = True
    assert not loaded
    assert issubclass(lowtide.WouldNotFit, MemoryError)


def test_r7_groups_then_their_environment_go_before_the_trim() -> None:
    device = Caching()
    device.pieces = [Piece(device.log, "libraries", name) for name in ("groups", "environment")]

    class Runner:
        def __init__(self) -> None:
            self.model = weights()

    lowtide.shutdown(Runner(), device=device, process_groups=True)
    assert device.log[:1] == ["synchronise"]
    assert device.log.index("groups") < device.log.index("environment") < device.log.index("trim")
    assert device.log[-1] == "synchronise", "and the device is waited for at the end"


def test_r7_a_group_that_hangs_is_named_and_left_behind() -> None:
    device = Caching()
    end, ended = threading.Event(), threading.Event()

    def hang() -> None:
        end.wait(60)
        ended.set()

    hangs = Piece(device.log, "libraries", "model-parallel groups", hang)
    hangs.limit_s = 0.1
    device.pieces = [hangs, Piece(device.log, "libraries", "environment")]
    receipt = lowtide.shutdown(Module(SIZE), device=device)
    assert not ended.is_set(), "it was not waited for"
    end.set()
    rung = receipt.rung("libraries")
    assert rung is not None
    assert (rung.outcome, "environment" in device.log) == ("failed", True)
    assert "model-parallel groups: did not end within 100 ms" in (rung.why or "")
    assert receipt.verdict == "released", "the model went all the same"


def test_r7_real_process_groups_are_ended_when_asked() -> None:
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        lowtide.shutdown(Module(SIZE), device=DEVICE)
        assert distributed.is_initialized(), "left alone where nobody asked"
        receipt = lowtide.shutdown(Module(SIZE), device=DEVICE, process_groups=True)
        assert not distributed.is_initialized()
        rung = receipt.rung("libraries")
        assert rung is not None and rung.touched, receipt
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def test_r8_what_is_not_installed_is_skipped_by_name_and_the_model_goes() -> None:
    device = Caching()
    missing, there = (Piece(device.log, "libraries", name) for name in ("vllm", "cuBLAS"))
    missing.why = "vllm is not installed"
    alone = Piece(device.log, "sessions", "onnxruntime")
    alone.why = "onnxruntime is not installed"
    device.pieces = [missing, there, alone]
    module = Module(SIZE)
    before = in_use()
    receipt = lowtide.shutdown(module, device=device)
    assert is_about(before - in_use(), SIZE)
    assert module.model is None
    rung = receipt.rung("libraries")
    assert rung is not None
    assert (rung.outcome, rung.skipped) == ("done", ["vllm: vllm is not installed"])
    assert device.log.count("vllm") == 0
    assert "skipped vllm: vllm is not installed" in receipt.detailed()
    kept = device.allocate()
    receipt = lowtide.release(to=0, device=device)
    del kept
    rung = receipt.rung("sessions")
    assert rung is not None
    assert (rung.outcome, rung.why) == ("skipped", "onnxruntime: onnxruntime is not installed")


def test_r9_a_module_is_loaded_again_and_its_teardown_costed() -> None:
    stages = lowtide.Stages(DEVICE)
    before = in_use()
    for _ in range(2):
        with stages.stage("reranker") as stage:
            module = stage.load(Module, SIZE)
            assert int(module.model[0]) == 7
            assert is_about(in_use() - before, SIZE)
        assert is_about(in_use(), before)
    report = stages.report()
    costs = [one.teardown_s for one in report.stages]
    assert all(cost > 0 for cost in costs)
    assert report.cleaning_s == pytest.approx(sum(costs))


def test_r10_a_module_of_ones_own_joins_with_one_line() -> None:
    class Custom:
        def __init__(self) -> None:
            self.net = torch.nn.Linear(4096, 4096, device=DEVICE)

    Joined = lowtide.releases()(Custom)
    before = in_use()
    with Joined() as custom:
        assert is_about(in_use() - before, 64 * MIB)
    assert is_about(in_use(), before)
    assert custom.net is None
    gc.collect()
