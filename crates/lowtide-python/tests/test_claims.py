"""What `released` means from Python: every kind of release claims something before it starts."""

from __future__ import annotations

import textwrap

import lowtide
import pytest
import torch
from alone import alone_with_torch
from kernel import DEVICE, MIB, SIZE, Caching, in_use, is_about, weights
from lowtide._devices import choose

pytestmark = pytest.mark.usefixtures("clean")


class Engine:
    def __init__(self, size: int = SIZE) -> None:
        self.model = torch.nn.Linear(1, 1, device=DEVICE)
        self.model.weight.data = weights(size).view(torch.float32).view(1, -1)
        self.runner = Runner(self.model)


class Runner:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model


def test_r45_a_shutdown_claims_what_its_object_holds_and_each_piece_once() -> None:
    engine = Engine()
    audit = lowtide.audit(engine)
    assert is_about(sum(drop.bytes or 0 for drop in audit.drops), SIZE, MIB), audit
    receipt = lowtide.shutdown(engine, device=DEVICE)
    assert receipt.claim is not None and receipt.claim.basis == "owned"
    assert is_about(receipt.claim.bytes, SIZE, MIB)
    drop = receipt.rung("drop")
    assert drop is not None and is_about(drop.expected_bytes or 0, SIZE, MIB)
    assert receipt.verdict == "released", receipt
    assert f"of {receipt.claim.bytes / MIB:.1f} MiB claimed" in receipt.line()


def test_r45_a_view_that_stays_is_pinned_and_not_released() -> None:
    engine = Engine()
    other = weights(2 * SIZE)
    engine.cache = other[: 2 * SIZE]  # type: ignore[attr-defined]
    kept = [other.view(-1, 2)[0]]
    del other
    receipt = lowtide.shutdown(engine, device=DEVICE)
    assert receipt.claim is not None and is_about(receipt.claim.bytes, 3 * SIZE, MIB)
    assert receipt.verdict in ("pinned", "partial"), receipt
    assert is_about(receipt.freed_bytes or 0, SIZE, 16 * MIB)
    del kept


def test_r45_tasks_that_keep_memory_are_not_released() -> None:
    device = Caching()
    stages = lowtide.Stages(device)
    device.free(device.allocate())
    first = stages.between("first")
    assert first.claim is not None and first.claim.basis == "cached"
    assert first.verdict == "released"
    kept = []
    for task in range(1, 4):
        kept.append(device.allocate())
        device.free(device.allocate())
        receipt = stages.between(f"task {task}")
        assert receipt.claim is not None and receipt.claim.basis == "level"
        assert receipt.verdict == "partial", receipt
        assert any("than after the first task" in line for line in receipt.advice), receipt
    assert stages.trend().samples == 4
    for tensor in kept:
        device.free(tensor)
    kept.clear()
    del tensor
    assert stages.between("let go").verdict == "released"


def test_r45_between_clears_registered_caches() -> None:
    device = Caching()
    device.hooks = lambda: None  # type: ignore[method-assign]
    cache = {"frames": weights()}
    remove = lowtide.register_cache("frames", cache.clear)
    try:
        receipt = lowtide.Stages(device).between("video")
    finally:
        remove()
    assert not cache
    caches = receipt.rung("caches")
    assert caches is not None and [touch.what for touch in caches.touched] == ["cache frames"]
    # Compiled code and the program's own lru caches stay between tasks; the receipt may name them.
    assert not any("compile" in touch.what for touch in caches.touched)


def test_r45_a_hook_that_is_not_run_is_named() -> None:
    device = Caching()
    device.hooks = lambda: None  # type: ignore[method-assign]
    remove = lowtide.register_cache("frames", {}.clear)
    try:
        receipt = lowtide.empty_device_cache(device)
    finally:
        remove()
    assert "caches: registered caches" in receipt.not_run
    assert "not run: " in str(receipt)


def without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWTIDE_DEVICE", raising=False)
    monkeypatch.setattr(choose, "current_kind", lambda module: None)


def test_r3_every_call_chooses_the_same_device_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_device(monkeypatch)
    engine, staged = Engine(), Engine()
    with lowtide.stage("none") as stage:
        stage.own(staged)
    receipts = [
        lowtide.empty_device_cache(),
        lowtide.release(),
        lowtide.shutdown(engine),
        stage.receipt,
    ]
    for receipt in receipts:
        assert receipt is not None
        assert (receipt.verdict, receipt.device, receipt.proved) == ("no-device", None, False)
    assert engine.model is None and staged.model is None, "dropped all the same (R8)"
    assert any("no accelerator" in note for note in lowtide.why().notes)
    monkeypatch.setenv("LOWTIDE_DEVICE", "cpu")
    assert lowtide.empty_device_cache().device == "cpu"
    assert lowtide.shutdown(Engine()).device == "cpu"
    assert not any("no accelerator" in note for note in lowtide.why().notes)


def test_without_a_device_nothing_is_asserted(monkeypatch: pytest.MonkeyPatch) -> None:
    without_device(monkeypatch)
    with pytest.raises(AssertionError, match="no device reports"), lowtide.assert_released():
        pass


def test_the_fixture_skips_without_a_device(tmp_path: object) -> None:
    code = textwrap.dedent(
        """
        import torch
        from lowtide._devices import choose
        from lowtide.pytest_plugin import device_memory
        choose.current_kind = lambda module: None
        def test_it(device_memory):
            pass
        """
    )
    path = f"{tmp_path}/test_fixture.py"
    with open(path, "w") as file:
        file.write(code)
    said = alone_with_torch(
        f"""
        import os, pytest
        os.environ.pop("LOWTIDE_DEVICE", None)
        pytest.main(["-rs", "-q", "-p", "no:cacheprovider", {path!r}])
        """
    )
    assert "1 skipped" in said and "no device reports" in said, said


def test_r45_release_of_everything_claims_everything() -> None:
    kept = weights()
    receipt = lowtide.release(device=DEVICE)
    assert receipt.claim is not None and receipt.claim.bytes >= SIZE
    assert receipt.verdict in ("pinned", "partial"), receipt
    before = in_use()
    del kept
    lowtide.empty_device_cache(DEVICE)
    assert before - in_use() > SIZE // 2
