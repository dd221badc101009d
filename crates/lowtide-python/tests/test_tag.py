"""Tagged memory: the C functions that torch calls, driven by hand on the driver double, and the setting that
torch's allocator has to do without. With the real torch: `xtask/gpu-pack/tag.py`, on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lowtide
import pytest
from lowtide._sleep import tag as _tag

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "target" / "debug" / "deps"
DOUBLE = BUILT / "liblowtide_testing.so"

# What torch does for the segments of a `MemPool`, and what a program reads and writes.
BEGINNING = """
import ctypes, os, sys, threading, warnings
import lowtide
from lowtide import _native
MIB = 1 << 20
native = ctypes.CDLL(_native.__file__)
cuda = ctypes.CDLL("libcuda.so.1")
native.lowtide_tag_malloc.restype = ctypes.c_void_p
native.lowtide_tag_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
native.lowtide_tag_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0

def malloc(size):
    return native.lowtide_tag_malloc(size, 0, None)

def free(at, size):
    native.lowtide_tag_free(at, size, 0, None)

def write(at, data):
    assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(at), data, ctypes.c_size_t(len(data))) == 0

def read(at, size):
    found = ctypes.create_string_buffer(size)
    assert cuda.cuMemcpyDtoH_v2(found, ctypes.c_uint64(at), ctypes.c_size_t(size)) == 0
    return found.raw

def used():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value

def tagged():
    return {one.name: one for one in lowtide.tags()}

def noise(size, seed):
    import random
    return random.Random(seed).randbytes(size)

class scope:
    def __init__(self, name, policy="offload", device=0):
        self.native = _native.TagScope(name, policy, device)
    def __enter__(self):
        self.native.begin()
        return self.native
    def __exit__(self, *error):
        self.native.end()

def refused(call, *words):
    try:
        call()
    except lowtide.TagError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"{words} was not raised")
"""


Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs programs on the double. They must end well and say nothing."""
    if not DOUBLE.exists():
        pytest.skip("the double is not built: `cargo build -p lowtide-testing` builds it")
    (tmp_path / "libcuda.so.1").symlink_to(DOUBLE)

    def run(program: str, settings: str = "") -> None:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(tmp_path),
            "LOWTIDE_DOUBLE": settings,
            "LOWTIDE_DOUBLE_STATE": str(tmp_path / "state"),
            "LOWTIDE_NVML_LIBRARY": str(DOUBLE),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-c", BEGINNING + program]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done

    return run


def test_tags_sleep_wake_and_are_lost_by_name_at_the_same_addresses(run: Run) -> None:
    run("""
empty = used()
with scope("weights"):
    weights, plain = malloc(6 * MIB), malloc(1)
with scope("cache", "discard"):
    cache = malloc(4 * MIB)
data = noise(6 * MIB, 1)
write(weights, data)
write(cache, data[:4 * MIB])
assert (tagged()["weights"].on_device_bytes, tagged()["cache"].bytes) == (8 * MIB, 4 * MIB)
assert _native.tag_at(weights) == ("weights", False) and _native.tag_at(weights + 1) is None
for turn in range(2):
    before = used()
    receipts = lowtide.sleep("weights", "cache")
    assert [receipt.verdict for receipt in receipts] == ["released"], receipts
    assert receipts[0].freed_bytes == before - used() == 12 * MIB
    assert all(one.is_asleep and one.on_device_bytes == 0 for one in tagged().values())
    assert _native.tag_at(weights) == ("weights", True)
    again = lowtide.sleep("weights")
    assert [receipt.verdict for receipt in again] == ["no-effect"], again
    assert lowtide.wake("weights") == 8 * MIB and lowtide.wake("weights") == 0
    assert read(weights, 6 * MIB) == data
    assert tagged()["cache"].is_asleep
    assert lowtide.wake() == 4 * MIB
# Level 2: the content is lost, the addresses stay, and the next sleep saves again.
receipts = lowtide.discard("weights")
assert [receipt.verdict for receipt in receipts] == ["released"], receipts
assert tagged()["weights"].backup_bytes == 0 and tagged()["weights"].policy == "offload"
lowtide.wake("weights")
write(weights, data[::-1])
lowtide.sleep("weights")
assert tagged()["weights"].backup_bytes > 0
lowtide.wake("weights")
assert read(weights, 6 * MIB) == data[::-1]
# What sleeps is given up, too.
lowtide.sleep("weights")
lowtide.discard("weights")
assert tagged()["weights"].is_asleep and tagged()["weights"].backup_bytes == 0
assert lowtide.wake("weights") == 8 * MIB
write(weights, data)
free(weights, 6 * MIB); free(plain, 1); free(cache, 4 * MIB)
assert [one.bytes for one in lowtide.tags()] == [0, 0] == [one.on_device_bytes for one in lowtide.tags()]
""")


def test_the_ledger_has_a_line_for_each_tag_that_is_awake(run: Run) -> None:
    run("""
from lowtide._devices.cuda_pools import lines_of
with scope("weights"):
    first, second = malloc(20 * MIB), malloc(2 * MIB)
def segment(at, size, live, pool):
    return dict(
        address=at, total_size=size, allocated_size=live, active_size=live, device=0, segment_pool_id=pool
    )
segments = [
    segment(first, 20 * MIB, 15 * MIB, (0, 1)),
    segment(second, 2 * MIB, MIB, (0, 2)),
    segment(4096, 2 * MIB, MIB, (0, 3)),
    segment(8192, 2 * MIB, 2 * MIB, (0, 0)),
]
def lines():
    return [(line.name, line.bytes // MIB) for line in lines_of(segments, set)]
others = [("torch", 2), ("torch MemPool (0, 3)", 1), ("torch MemPool (0, 3)", 1)]
assert lines() == [*others, ("tag weights", 16), ("tag weights", 6)], lines()
lowtide.sleep("weights")
assert lines() == others, lines()
""")


def test_what_is_kept_stays_and_wrong_words_are_refused(run: Run) -> None:
    run("""
refused(lambda: lowtide.sleep("weights"), "no tag", "weights")
with scope("kept", "keep"):
    kept = malloc(2 * MIB)
with scope("weights"):
    weights = malloc(2 * MIB)
write(kept, b"stays" * 100)
lowtide.sleep()
assert not tagged()["kept"].is_asleep and tagged()["weights"].is_asleep
assert read(kept, 5) == b"stays"
refused(lambda: lowtide.wake("wieghts"), "wieghts", "kept, weights")
refused(lambda: _native.TagScope("weights", "discard", 0), "offload")
refused(lambda: _native.TagScope("weights", "lose", 0), "lose", "keep")
refused(lambda: _native.TagScope("weights", "offload", -1), "-1")
refused(lambda: _native.TagScope("weights", "offload", 7), "7")
try:
    lowtide.discard()
except TypeError:
    pass
else:
    raise AssertionError("all tags were lost")
lowtide.wake()
assert "weights" in repr(tagged()["weights"])
""")


def test_the_innermost_scope_of_the_thread_is_in_force(run: Run) -> None:
    run("""
with scope("outer"):
    first = malloc(2 * MIB)
    with scope("inner"):
        second = malloc(2 * MIB)
    third = malloc(2 * MIB)
    found = []
    thread = threading.Thread(target=lambda: found.append(malloc(2 * MIB)))
    thread.start(); thread.join()
names = [_native.tag_at(at)[0] for at in (first, second, third, *found, malloc(2 * MIB))]
assert names == ["outer", "inner", "outer", "default", "default"], names

# Scopes that end out of order, and on another thread.
one, two = _native.TagScope("one", "offload", 0), _native.TagScope("two", "offload", 0)
one.begin(); two.begin(); one.end()
assert _native.tag_at(malloc(MIB))[0] == "two"
thread = threading.Thread(target=two.end)
thread.start(); thread.join()
assert _native.tag_at(malloc(MIB))[0] == "default"
two.end()
assert [one.open_scopes for one in lowtide.tags()] == [0] * 5
# A scope that nobody has any more is not open.
lost = _native.TagScope("lost", "offload", 0)
lost.begin()
assert tagged()["lost"].open_scopes == 1
refused(lost.begin, "lost")
del lost
assert tagged()["lost"].open_scopes == 0
""")


def test_a_tag_with_an_open_scope_does_not_sleep_and_a_sleeping_tag_opens_none(run: Run) -> None:
    run("""
with scope("weights") as open_scope:
    at = malloc(2 * MIB)
    refused(lambda: lowtide.sleep("weights"), "open", "weights")
    refused(lambda: lowtide.discard("weights"), "open", "weights")
    refused(lambda: lowtide.wake("weights"), "open")
write(at, b"same" * 10)
lowtide.sleep("weights")
refused(open_scope.begin, "asleep", "wake")
free(at, 2 * MIB)
assert tagged()["weights"].bytes == 0
assert lowtide.wake("weights") == 0
with scope("weights"):
    assert malloc(2 * MIB)
""")


def test_without_memory_the_allocation_is_null_and_the_reason_is_kept(run: Run) -> None:
    run(
        """
total = ctypes.c_size_t()
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
held = []
with scope("weights"):
    for size in (total.value, -1, 1 << 62, total.value * 4):
        assert malloc(size) is None, size
        assert _native.tag_refusal() and _native.tag_refusal() is None
    while at := malloc(total.value // 8):
        held.append(at)
    reason = _native.tag_refusal()
    assert "memory" in reason, reason
    # What is freed is the device's again, and there is room.
    free(held.pop(), total.value // 8)
    held.append(malloc(total.value // 8))
    assert held[-1]
used_by_tags = tagged()["weights"].on_device_bytes
lowtide.sleep("weights")
# Somebody else takes the room: a wake is refused, and nothing is lost.
other, size = ctypes.c_uint64(), ctypes.c_size_t(total.value // 2)
assert cuda.cuMemAlloc_v2(ctypes.byref(other), size) == 0
refused(lambda: lowtide.wake("weights"), "room")
assert tagged()["weights"].is_asleep
assert cuda.cuMemFree_v2(other) == 0
assert lowtide.wake("weights") == used_by_tags
""",
        "total=512MiB",
    )


def test_memory_is_freed_on_any_thread_and_a_strange_address_is_left_alone(run: Run) -> None:
    run("""
with scope("weights"):
    found = [malloc(2 * MIB) for _ in range(8)]
before = used()
threads = [threading.Thread(target=free, args=(at, 2 * MIB)) for at in found]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert before - used() == 16 * MIB and tagged()["weights"].bytes == 0
free(found[0], 2 * MIB)
free(12345, 1)
free(None, 0)
native.lowtide_tag_free(found[0], 1, 9, None)
assert native.lowtide_tag_malloc(MIB, -3, None) is None
""")


def test_threads_allocate_and_free_while_another_tag_sleeps_and_wakes(run: Run) -> None:
    run("""
with scope("weights"):
    weights = malloc(8 * MIB)
data = noise(8 * MIB, 2)
write(weights, data)
done, wrong = threading.Event(), []
def work(name):
    assert cuda.cuCtxSetCurrent(context) == 0
    with scope(name):
        for turn in range(40):
            at = malloc(2 * MIB)
            if not at or _native.tag_at(at) != (name, False):
                wrong.append((name, turn, _native.tag_refusal()))
            free(at, 2 * MIB)
threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(3)]
[thread.start() for thread in threads]
turns = 0
while any(thread.is_alive() for thread in threads) or turns < 2:
    lowtide.sleep("weights")
    lowtide.wake("weights")
    turns += 1
[thread.join() for thread in threads]
assert not wrong, wrong
assert read(weights, 8 * MIB) == data
""")


def test_a_forked_child_has_no_tags_and_its_parent_goes_on(run: Run) -> None:
    run("""
with scope("weights") as weights:
    at = malloc(2 * MIB)
    write(at, b"parent")
    # From Python 3.12 on a fork with threads warns.
    warnings.simplefilter("ignore", DeprecationWarning)
    pid = os.fork()
    if pid == 0:
        right = malloc(MIB) is None and "forked" in _native.tag_refusal() and lowtide.tags() == []
        free(at, 2 * MIB)
        weights.end()
        refused(lambda: _native.tags_sleep(["weights"]), "forked")
        refused(lambda: _native.TagScope("weights", "offload", 0), "forked")
        refused(weights.begin, "forked")
        os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert malloc(2 * MIB)
assert read(at, 6) == b"parent"
lowtide.sleep("weights")
lowtide.wake("weights")
assert read(at, 6) == b"parent"
""")


def test_backups_ahead_save_what_a_sleep_would_copy_until_they_are_closed(run: Run) -> None:
    run("""
import time
ahead = lowtide.ahead(share=100)
assert (ahead.state, ahead.is_done, ahead.is_closed) == ({}, False, False), repr(ahead)
# The device is first used afterwards.
with scope("weights"):
    weights = malloc(6 * MIB)
data = noise(6 * MIB, 1)
write(weights, data)
while tagged()["weights"].backup_bytes < 6 * MIB:
    assert set(ahead.state.values()) <= {"working", "done"}, ahead
    time.sleep(0.01)
while not ahead.is_done:
    time.sleep(0.01)
assert repr(ahead) == "<lowtide.Ahead 100 %: cuda:0 done>", repr(ahead)
assert not tagged()["weights"].is_asleep and tagged()["weights"].on_device_bytes == 6 * MIB
ahead.close()
ahead.close()
assert ahead.is_closed and "closed" in repr(ahead)
# What is written after that is in no backup yet, and the sleep saves it.
data = b"changed" + data[7:]
write(weights, data)
assert [receipt.verdict for receipt in lowtide.sleep("weights")] == ["released"]
lowtide.wake("weights")
assert read(weights, 6 * MIB) == data
""")


def test_one_thread_makes_backups_ahead_and_wrong_shares_are_refused(run: Run) -> None:
    run("""
with scope("weights"):
    weights = malloc(2 * MIB)
def threads():
    from pathlib import Path
    found = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "comm").read_text().strip() == "lowtide-ahead"
        except OSError:
            pass  # It has ended meanwhile.
    return found
def wait_for(number):
    # A thread gives itself its name, and the kernel forgets it a little after its end.
    while threads() != number:
        time.sleep(0.01)
import time
first = lowtide.ahead()
assert first.share == 25
wait_for(1)
for share in (0, 101, -5):
    try:
        lowtide.ahead(share)
    except ValueError as error:
        assert str(share) in str(error) and "from 1 to 100" in str(error), error
    else:
        raise AssertionError(share)
assert not first.is_closed
with lowtide.ahead(share=50) as second:
    assert (first.is_closed, second.is_closed) == (True, False)
    wait_for(1)
    first.close()
    assert not second.is_closed
assert second.is_closed
wait_for(0)
# A forked child has none, and may drop and close what it has inherited. The parent's go on.
third = lowtide.ahead(1)
warnings.simplefilter("ignore", DeprecationWarning)
pid = os.fork()
if pid == 0:
    third.close()
    right = third.is_closed
    refused(lambda: lowtide.ahead(1), "forked")
    os._exit(0 if right else 1)
assert os.waitpid(pid, 0)[1] == 0
assert not third.is_closed
wait_for(1)
# The program ends while the thread works.
""")


def test_a_program_may_end_with_tags_open_asleep_or_freed_late(run: Run) -> None:
    run("""
with scope("asleep"):
    asleep = malloc(2 * MIB)
lowtide.sleep("asleep")
open_scope = _native.TagScope("open", "offload", 0)
open_scope.begin()
at = malloc(2 * MIB)
class Late:
    def __init__(self):
        self.free, self.at = native.lowtide_tag_free, (at, asleep)
    def __del__(self):
        for one in self.at:
            self.free(one, 2 << 20, 0, None)
sys.modules["late"] = Late()
""")


def test_a_program_without_a_gpu_is_told(tmp_path: Path) -> None:
    program = """
import lowtide
from lowtide import _native
assert lowtide.tags() == []
try:
    _native.TagScope("weights", "offload", 0)
except lowtide.TagError as error:
    assert "libcuda" in str(error) or "driver" in str(error), error
else:
    raise AssertionError("there is a GPU")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["LOWTIDE_CUDA_LIBRARY"] = str(tmp_path / "libcuda.so.1")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


class Settings:
    """torch's allocator settings, as `ExpandableSegments` reads and writes them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.cuda = SimpleNamespace(memory=SimpleNamespace(_snapshot=self.snapshot))
        self._C = SimpleNamespace(_accelerator_setAllocatorSettings=self.write)
        self.written: list[str] = []

    def snapshot(self) -> dict[str, dict[str, str]]:
        return {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self.text}}

    def write(self, text: str) -> None:
        self.text = text
        self.written.append(text)


def test_expandable_segments_are_off_until_the_last_scope_ends() -> None:
    settings = Settings("max_split_size_mb:64, expandable_segments:True")
    segments = _tag.ExpandableSegments()
    segments.avoid(settings)
    segments.avoid(settings)
    assert settings.text == "max_split_size_mb:64,expandable_segments:False"
    segments.allow(settings)
    assert len(settings.written) == 1
    segments.allow(settings)
    assert settings.text == "max_split_size_mb:64, expandable_segments:True"


@pytest.mark.parametrize("text", ["", "max_split_size_mb:64", "expandable_segments:False"])
def test_settings_without_expandable_segments_are_left_alone(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _tag.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = Settings(text)
    segments = _tag.ExpandableSegments()
    segments.avoid(settings)
    segments.allow(settings)
    assert settings.written == []


def test_a_scope_of_a_torch_without_a_gpu_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    told = r"^a tag needs a GPU that torch can use, and there is none .*`lowtide doctor`"
    with pytest.raises(lowtide.TagError, match=told), lowtide.tag("weights"):
        raise SystemError("it was entered")
    assert "weights" in repr(lowtide.tag("weights"))


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"name": 5}, TypeError, "name must be a text, not int"),
        ({"name": None}, TypeError, "name must be a text, not NoneType"),
        ({"name": b"weights"}, TypeError, "name must be a text, not bytes"),
        ({"name": "weights", "policy": 1}, TypeError, "policy must be a text, not int"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": " "}, ValueError, "name must not be empty"),
        (
            {"name": "weights", "policy": "lose"},
            ValueError,
            "'lose' is no policy; there are offload",
        ),
    ],
)
def test_wrong_words_are_refused_before_the_scope_is_entered(
    arguments: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        lowtide.tag(**arguments)
