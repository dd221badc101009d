"""R16–R24: a shutdown that really frees."""

from __future__ import annotations

import logging
from typing import ClassVar

import lowtide
import pytest
import torch
from kernel import DEVICE, MIB, SIZE, Caching, Piece, in_use, is_about, weights
from lowtide._native import LedgerKind

pytestmark = pytest.mark.usefixtures("clean")


class Runner:
    def __init__(self, size: int = SIZE) -> None:
        self.name = "runner"
        self.model = weights(size)


def test_r16_it_synchronises_before_anything_goes() -> None:
    device = Caching()

    class Model:
        def __init__(self) -> None:
            self.weights = weights()

        def __del__(self) -> None:
            device.log.append("model")

    runner = Runner()
    runner.model = Model()  # type: ignore[assignment]
    lowtide.shutdown(runner, device=device)
    assert device.log[:2] == ["synchronise", "model"]


def test_r17_a_partial_start_is_shut_down_and_twice_is_once() -> None:
    class Partial:
        def __init__(self) -> None:
            self.model = weights()
            self.kv_cache: object = None
            raise RuntimeError("no room for the rest")

    partial = Partial.__new__(Partial)
    with pytest.raises(RuntimeError, match="no room"):
        partial.__init__()  # type: ignore[misc]
    before = in_use()
    first = lowtide.shutdown(partial, device=DEVICE)
    assert is_about(before - in_use(), SIZE)
    assert first.verdict == "released"
    second = lowtide.shutdown(partial, device=DEVICE)
    assert second.verdict == "no-effect"
    rung = second.rung("drop")
    assert rung is not None
    assert (rung.outcome, rung.why) == ("skipped", "there is nothing to drop")
    # One that never began.
    assert lowtide.shutdown(Partial.__new__(Partial), device=DEVICE).verdict == "no-effect"


class Engine:
    """A runner with all that R18 names; nobody tells lowtide the names."""

    def __init__(self) -> None:
        size = 8 * MIB
        self.model = torch.nn.Linear(1024, 2048, device=DEVICE)
        self.kv_caches = [weights(size) for _ in range(2)]
        self.attn_groups = [[{"layer": weights(size)}]]
        self.kv_cache_config = type("Config", (), {})()
        self.kv_cache_config.tensors = (weights(size),)
        self.model_state = {"embeddings": weights(size)}
        self.speculator = type("Speculator", (), {})()
        self.speculator.draft, self.speculator.target = weights(size), self.model
        self.pooling_runner = type("Pooling", (), {})()
        self.pooling_runner.model = self.model
        self.graph_manager = type("Graphs", (), {})()
        self.graph_manager.buffers = {1: weights(size)}
        self.intermediate_tensors = {"hidden": weights(size)}
        self.encoder_cache = {"image": weights(size)}
        self.workspace = weights(size)
        self.vllm_config = type("Config", (), {})()
        self.vllm_config.compilation_config = type("Compilation", (), {})()
        self.vllm_config.compilation_config.forward_context = {
            "layer.0": weights(size),
            "layer.1": self.model,
        }
        self.worker = Worker(self.vllm_config)


class Worker:
    """Somebody who shares the engine's configuration and outlives it."""

    all: ClassVar[list[Worker]] = []

    def __init__(self, config: object) -> None:
        self.vllm_config = config
        self.all.append(self)


NAMES = [
    *("model", "kv_caches", "attn_groups", "kv_cache_config", "model_state", "speculator"),
    *("pooling_runner", "graph_manager", "intermediate_tensors", "encoder_cache", "workspace"),
    "vllm_config.compilation_config.forward_context",
]


def test_r18_all_that_an_engine_has_goes_without_being_told_its_names() -> None:
    before = in_use()
    engine = Engine()
    assert in_use() - before > 80 * MIB
    receipt = lowtide.shutdown(engine, device=DEVICE)
    assert is_about(in_use(), before)
    assert receipt.verdict == "released", receipt
    drop = receipt.rung("drop")
    assert drop is not None
    touched = " ".join(touch.what for touch in drop.touched)
    for name in NAMES:
        assert name in touched, touched
    assert engine.vllm_config is engine.worker.vllm_config, "the worker's configuration stays"
    assert engine.vllm_config.compilation_config.forward_context == {}


def test_r19_wrappers_go_before_what_they_wrap() -> None:
    engine = Engine()
    receipt = lowtide.shutdown(engine, device=DEVICE)
    drop = receipt.rung("drop")
    assert drop is not None
    order = [touch.what for touch in drop.touched]

    def at(name: str) -> int:
        return next(i for i, what in enumerate(order) if name in what)

    assert at("pooling_runner") < at(".model")
    assert at("speculator") < at(".model")


def test_r20_memory_comes_back_while_the_runner_is_kept() -> None:
    before = in_use()
    runner = Runner()
    receipt = lowtide.shutdown(runner, device=DEVICE)
    assert is_about(in_use(), before)
    assert receipt.proved
    assert runner.name == "runner", "and is otherwise as it was"


def test_r21_who_survives_is_named_by_path_and_count() -> None:
    runner = Runner()
    held = [runner.model, runner.model]
    before = in_use()
    receipt = lowtide.shutdown(runner, device=DEVICE)
    # Whoever looked for the holders took some memory too.
    assert is_about(in_use(), before, 32 * MIB), "held"
    assert receipt.verdict == "pinned"
    assert receipt.holders, receipt
    assert all(holder.path and holder.count >= 1 for holder in receipt.holders)
    assert sum(holder.bytes or 0 for holder in receipt.holders) >= SIZE
    [holder] = [holder for holder in receipt.holders if "held[0]" in holder.path]
    where = "frame test_r21_who_survives_is_named_by_path_and_count()"
    assert holder.path.startswith(where)
    assert holder.cut is None, "no statement of other code reaches a variable of this function"
    assert f"lowtide.cut({holder.number})  # lets Tensor go: {holder.path}" in receipt.advice
    assert "held: " in str(receipt)
    held.clear()
    assert lowtide.shutdown(runner, device=DEVICE).verdict == "released", (
        "nothing was dropped before"
    )
    assert is_about(before - in_use(), SIZE, 32 * MIB)


def test_r21_two_runners_that_share_weights_do_not_harm_each_other() -> None:
    shared = torch.nn.Linear(2048, 4096, device=DEVICE)
    one, other = Runner(), Runner()
    one.model = other.model = shared  # type: ignore[assignment]
    example = torch.ones(2048, device=DEVICE)
    wanted = shared(example).detach().clone()
    del shared
    receipt = lowtide.shutdown(one, device=DEVICE)
    assert receipt.verdict == "pinned"
    assert torch.equal(other.model(example), wanted)  # type: ignore[operator]


def test_r22_captured_graphs_are_a_line_of_their_own() -> None:
    device = Caching()
    kept = device.allocate()
    captured = device.capture(16 * MIB)
    receipt = lowtide.empty_device_cache(device)
    ledger = receipt.ledger
    assert ledger is not None
    sizes = {line.kind: line.bytes for line in ledger.lines}
    assert sizes[LedgerKind.GRAPHS] == 16 * MIB
    # On a GPU, a graph has numbers of the random generator beside it.
    assert is_about(sizes[LedgerKind.LIVE], SIZE, MIB)
    assert "captured graphs" in str(receipt)
    del kept, captured


@pytest.mark.parametrize("kind", [DEVICE, "xpu", "mps", "cuda"])
def test_r23_it_works_on_every_kind_of_device(kind: str) -> None:
    device = DEVICE if kind == DEVICE else Caching(kind)
    runner = Runner()
    before = in_use()
    receipt = lowtide.shutdown(runner, device=device)
    assert is_about(before - in_use(), SIZE)
    assert receipt.verdict == "released"
    assert (receipt.device or "").startswith(kind)


def test_r24_collect_then_trim_then_one_line(caplog: pytest.LogCaptureFixture) -> None:
    device = Caching()
    device.pieces = [Piece(device.log, "collect", "collect")]
    caplog.set_level(logging.INFO, "lowtide")
    receipt = lowtide.shutdown(Runner(), device=device)
    assert device.log.index("collect") < device.log.index("trim")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("lowtide", "INFO")
    assert record.getMessage() == receipt.line()
    assert vars(record)["lowtide_verdict"] == "released"
    assert vars(record)["lowtide_freed_bytes"] == receipt.freed_bytes
