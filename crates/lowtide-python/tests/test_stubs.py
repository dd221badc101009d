"""Public names are documented and typed, and importing lowtide is cheap."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import lowtide
import native_stub
import pytest
from lowtide import _native


def test_every_public_name_is_there_and_documented() -> None:
    public = {name for name in dir(lowtide) if name[0] != "_"} - {"annotations", "TYPE_CHECKING"}
    assert len(public) > 50
    for name in public:
        assert (getattr(lowtide, name).__doc__ or "").strip(), f"{name} says nothing"


def test_every_class_of_the_native_part_is_wrapped_or_public() -> None:
    # What people hold is public. The rest is behind a class of Python, or what the package tells the
    # native part and hears from it.
    wrapped = {"Gate", "Idle", "Stages", "Opened", "Pauses", "Releaser", "Pass", "Working", "Tick"}
    wrapped |= {"Alone", "Examining", "Resumed", "TagScope", "TrendWarning"}
    wrapped |= {"ProcessTree"}
    devices = {"Usage", "AllocatorCounts", "ProcessMemory", "ProcessUsage", "NvmlUsage"}
    releases = {"GateState", "HookPoint", "Ladder"}
    heap = {
        "CutEdge",
        "DeadCycle",
        "Examination",
        "HeapCut",
        "HeapPath",
        "HeldObject",
        "DroppedReference",
    }
    heap |= {
        "ShutdownPlan",
        "Memory",
        "MemoryKind",
        "NativeObject",
        "NodeHooks",
        "ObjectKind",
        "RetainedSize",
        "Shown",
    }
    classes = {name for name, found in vars(_native).items() if isinstance(found, type)}
    for name in classes - wrapped - devices - releases - heap - {"TypeKind"}:
        assert getattr(lowtide, name, None) is getattr(_native, name), name


def test_every_native_method_says_what_it_does() -> None:
    for name, cls in vars(_native).items():
        if not isinstance(cls, type) or issubclass(cls, Exception):
            continue
        assert cls.__doc__, name
        for method, found in vars(cls).items():
            if not method.startswith("_") and type(found) is not cls:
                assert (found.__doc__ or "").strip(), f"{name}.{method}"


def test_the_stub_is_what_the_sources_say() -> None:
    if importlib.util.find_spec("ruff") is None or not native_stub.STUB.exists():
        pytest.skip("ruff is not installed, or the sources are not here")
    assert native_stub.STUB.read_text() == native_stub.generated(), "run tests/native_stub.py"


def test_the_stubs_are_those_of_the_module(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    # The names are compared one by one.
    (tmp_path / "allowed").write_text("lowtide._native.__all__\n")
    command = [sys.executable, "-m", "mypy.stubtest", "lowtide._native"]
    command += ["--allowlist", str(tmp_path / "allowed")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def imported(code: str) -> set[str]:
    command = [sys.executable, "-S", "-X", "importtime", "-c", code]
    path = ":".join(path for path in sys.path if path)
    done = subprocess.run(
        command, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


def test_an_import_is_light() -> None:
    bare, with_lowtide = imported("pass"), imported("import lowtide")
    mine = with_lowtide - bare
    assert "lowtide._native" in mine
    heavy = {"torch", "numpy", "asyncio", "inspect", "dataclasses", "logging", "threading", "json"}
    assert not mine & heavy, mine & heavy
    assert not {name for name in mine if name.startswith(("lowtide._why", "lowtide._rungs"))}


def test_free_threaded_builds_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("lowtide")
    assert spec is not None and spec.loader is not None
    monkeypatch.setattr(sys, "abiflags", "t", raising=False)
    module = importlib.util.module_from_spec(spec)
    with pytest.raises(ImportError, match="free-threaded"):
        spec.loader.exec_module(module)
