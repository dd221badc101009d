"""`status`, `sleep`, `suspend` and `wake`: a program without an agent, and one with the agent on the driver double."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lowtide
import pytest
from lowtide._devices.cuda import CudaDevice
from lowtide._native import Usage

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "target" / "debug" / "deps"
AGENT, DOUBLE = BUILT / "liblowtide_agent.so", BUILT / "liblowtide_testing.so"
HELPER = BUILT.parent / "lowtide-helper"

PROGRAM = """
import ctypes, lowtide
cuda = ctypes.CDLL("libcuda.so.1")
context, at, size = ctypes.c_void_p(), ctypes.c_uint64(), 4 << 20
data, found = bytes(range(256)) * (size // 256), ctypes.create_string_buffer(size)
try:
    lowtide.status()
except lowtide.AgentError as error:
    assert "CUDA" in str(error), error
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
assert cuda.cuMemcpyHtoD_v2(at, data, ctypes.c_size_t(size)) == 0
status = lowtide.status()
assert not status.is_asleep and status.bytes == status.on_device_bytes == size, status
assert status.idle_s is None and not status.obstacles and not status.staying
assert [ledger.device for ledger in status.ledgers] == ["cuda:0"]
assert status.to_dict()["is_asleep"] is False
receipts = lowtide.sleep()
assert [receipt.verdict for receipt in receipts] == ["released"], receipts
assert lowtide.status().is_asleep and lowtide.status().on_device_bytes == 0
assert lowtide.sleep() == []
assert (lowtide.wake(), lowtide.wake()) == (size, 0)
lowtide.sleep()
assert cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(size)) == 0
assert found.raw == data and not lowtide.status().is_asleep

suspended = lowtide.suspend()
assert suspended["verdict"] == "released", suspended
assert [step["step"] for step in suspended["steps"]] == ["lock", "checkpoint"]
status = lowtide.status()
assert status.is_suspended and status.is_asleep and "suspended" in repr(status)
assert lowtide.suspend() is None
assert cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(size)) == 0
assert found.raw == data and not lowtide.status().is_suspended
lowtide.suspend()
assert lowtide.wake() == size

# Idle, the program leaves its devices after the release.
import time
with lowtide.idle("50ms", to="suspend") as idle:
    with idle.work():
        assert cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(size)) == 0
    while not lowtide.status().is_suspended:
        time.sleep(0.01)
    with idle.work():
        assert cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(size)) == 0
        assert found.raw == data and not lowtide.status().is_suspended

# A torch that uses the device is asked for its cache first.
import torch
asked = []
assert not torch.cuda.is_initialized()
lowtide.sleep()
lowtide.wake()
torch.cuda.empty_cache = lambda: asked.append(True)
lowtide.sleep()
lowtide.wake()
assert not asked
torch.cuda.is_initialized = lambda: True
lowtide.sleep()
assert asked == [True], asked
"""


ZERO = """
import ctypes, lowtide
from lowtide._devices.cuda import CudaDevice
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context, at, size = ctypes.c_void_p(), ctypes.c_uint64(), 4 << 20
data, found = bytes(range(256)) * (size // 256), ctypes.create_string_buffer(size)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
assert cuda.cuMemcpyHtoD_v2(at, data, ctypes.c_size_t(size)) == 0
handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetUUID(handle, uuid, 96) == 0
# The CPU build of torch has no CUDA to ask for it.
device = CudaDevice("cuda:0", 0)
device._uuid = uuid.value.decode()
# Nor any memory of its own: this is what a torch with CUDA says, wherever the memory is.
from lowtide._devices import cuda as module
module.snapshot = lambda index: [{"allocated_size": size, "total_size": size}]
assert [line.bytes for line in device.lines()] == [size]
lowtide.sleep()
assert device.lines() == [] and lowtide.status().is_asleep
lowtide.wake()

# A target that needs no suspend does not bring one.
receipt = lowtide.release(to="1 GiB", device=device)
assert receipt.verdict == "released" and not receipt.rungs, receipt
assert not lowtide.status().is_suspended

for _ in range(3):
    receipt = lowtide.release(to=0, device=device)
    assert receipt.verdict == "released", receipt
    last = receipt.rungs[-1]
    assert (last.rung, last.freed_bytes) == ("suspend", (64 << 20) + size), receipt
    assert (receipt.before.own_bytes, receipt.after.own_bytes) == ((64 << 20) + size, 0), receipt
    assert "until its next use" in last.touched[0].what, last
    assert lowtide.status().is_suspended
    assert receipt.ledger.unknown_bytes >= 0, receipt.detailed()

    # Nothing is left to do, and asking for it does not bring the program back.
    again = lowtide.release(to="0 MiB", device=device)
    assert again.verdict == "released" and not again.rungs, again
    assert lowtide.status().is_suspended
    assert cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(size)) == 0
    assert found.raw == data and not lowtide.status().is_suspended
"""


def test_a_release_to_zero_suspends_the_program_and_its_next_use_brings_it_back(
    tmp_path: Path,
) -> None:
    run_on_double(ZERO, tmp_path)


def test_a_release_to_zero_without_an_agent_says_why_the_context_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpu(CudaDevice):
        def usage(self) -> Usage:
            return Usage(8 << 30, 7 << 30)

        def own(self) -> int:
            return 600 << 20

        def uuid(self) -> str:
            return "GPU-none"

    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    receipt = lowtide.release(to=0, device=Gpu("cuda:0", 0))
    assert receipt.verdict == "no-effect", receipt
    suspend = next(rung for rung in receipt.rungs if rung.rung == "suspend")
    assert suspend.outcome == "skipped", suspend
    assert "lowtide run" in str(suspend.why), suspend


@pytest.mark.parametrize("ask", [lowtide.status, lowtide.sleep, lowtide.suspend, lowtide.wake])
def test_a_program_without_an_agent_is_told_how_to_get_one(
    ask: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(lowtide.AgentError, match="lowtide run"):
        ask()


def test_an_idle_program_without_an_agent_says_that_it_is_not_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for to in ("suspend", 0, "0 MiB"):
        caplog.clear()
        with lowtide.idle("1h", to=to) as idle:
            idle._released(lowtide.release())
        assert "is not suspended" in caplog.text and "lowtide run" in caplog.text
    caplog.clear()
    with lowtide.idle("1h", to="floor") as idle:
        idle._released(lowtide.release())
    assert "suspended" not in caplog.text


def is_current() -> bool:
    """Whether the agent is built from the source that is here."""
    if not (AGENT.exists() and DOUBLE.exists() and HELPER.exists()):
        return False
    sources = [
        *(ROOT / "crates/lowtide-agent/src").rglob("*.rs"),
        *(ROOT / "crates/lowtide-proto/src").rglob("*.rs"),
    ]
    return all(source.stat().st_mtime <= AGENT.stat().st_mtime for source in sources)


def test_a_program_asks_its_own_agent(tmp_path: Path) -> None:
    run_on_double(PROGRAM, tmp_path)


def run_on_double(program: str, tmp_path: Path) -> None:
    """Runs a program with the agent, on the driver double."""
    if not is_current():
        pytest.skip("the agent is not built: `cargo test -p lowtide-agent --no-run` builds it")
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / library).symlink_to(DOUBLE)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(AGENT),
        "LD_LIBRARY_PATH": str(tmp_path),
        "LOWTIDE_DOUBLE_STATE": str(tmp_path / "state"),
        "LOWTIDE_NVML_LIBRARY": str(DOUBLE),
        "XDG_RUNTIME_DIR": str(run),
        "LOWTIDE_HELPER_PROGRAM": str(HELPER),
        # It ends soon after the test.
        "LOWTIDE_HELPER": f"idle_ms=3000,locks={tmp_path}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
