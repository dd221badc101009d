"""Tags on a GPU with the real torch: memory that sleeps and wakes in the same process.

    PYTHONPATH=site python3 tag.py [--gib 4] [--results tag.json]

Weights and a cache are allocated in tags, a graph is captured over them. The tags sleep (level 1: weights are saved,
the cache is lost; level 2: both are lost), wake by name, and the graph must give the same answer at the same
addresses. The device's own numbers say what left and what came back. Beside it: nested scopes, another thread, a free
on another thread, out of memory, expandable segments, a program's end with a scope's tensors alive.
Exits 0 only if everything was right.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import lowtide
import torch
from lowtide._sleep.tag import write

MIB = 1 << 20
SLACK = 96 * MIB
report: dict[str, object] = {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--end", action="store_true", help="only a program's end (for a child)")
    arguments = parser.parse_args()
    if arguments.end:
        end()
        return
    report["torch"] = torch.__version__
    report["device"] = torch.cuda.get_device_name()
    failed = []
    parts = [
        ("levels", lambda: levels(arguments.gib)),
        ("scopes", scopes),
        ("threads", threads),
        ("out_of_memory", out_of_memory),
        ("expandable", expandable),
        ("freed", freed),
        ("ledger", ledger),
        ("back_end", back_end),
        ("child", child),
    ]
    for name, part in parts:
        began = time.perf_counter()
        try:
            part()
            print(f"{name}: right, {time.perf_counter() - began:.2f} s", flush=True)
        except Exception as error:  # noqa: BLE001  Every part is tried.
            import traceback

            traceback.print_exc()
            failed.append(name)
            print(f"{name}: WRONG: {type(error).__name__}: {error}", flush=True)
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
    report["failed"] = failed
    print(json.dumps(report, indent=1, default=str))
    if arguments.results:
        arguments.results.write_text(json.dumps(report, indent=1, default=str))
    sys.exit(1 if failed else 0)


def used() -> int:
    """What the device says is in use."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def timed(key: str, call):
    began = time.perf_counter()
    done = call()
    report[key] = round((time.perf_counter() - began) * 1000, 1)
    return done


def levels(gib: int) -> None:
    torch.manual_seed(17)
    with lowtide.tag("weights"):
        weights = [torch.randn(16384, 8192, device="cuda") for _ in range(2 * gib)]  # 512 MiB each
        small = torch.randn(1024, 1024, device="cuda")
    with lowtide.tag("kv_cache", policy="discard"):
        cache = torch.zeros(gib << 28, dtype=torch.float32, device="cuda")
    size, addresses = sum(one.nbytes for one in weights), [one.data_ptr() for one in weights]
    static = torch.randn(1024, 1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out = torch.relu(static @ small) + cache[:1024]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.relu(static @ small) + cache[:1024]
    graph.replay()
    torch.cuda.synchronize()
    expected, sums = out.clone(), [float(one.double().sum()) for one in weights]
    status = {one.name: one for one in lowtide.tags()}
    print(list(status.values()))
    assert status["weights"].on_device_bytes >= size, status

    # Level 1: the weights are saved, the cache is lost.
    for turn in range(2):
        before = used()
        lost = timed(f"discard_ms_{turn}", lambda: lowtide.discard("kv_cache"))
        kept = timed(f"sleep_ms_{turn}", lambda: lowtide.sleep("weights"))
        during = used()
        print(lost[0], kept[0], sep="\n")
        assert [one.verdict for one in lost + kept] == ["released"] * 2, lost + kept
        assert before - during > size + cache.nbytes - SLACK, (before, during)
        back = timed(f"wake_weights_ms_{turn}", lambda: lowtide.wake("weights"))
        assert back >= size
        back = timed(f"wake_cache_ms_{turn}", lambda: lowtide.wake("kv_cache"))
        assert back >= cache.nbytes
        assert [one.data_ptr() for one in weights] == addresses
        assert [float(one.double().sum()) for one in weights] == sums, "other weights"
        cache.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected), "the graph gives another answer"
        report[f"level_1_mib_{turn}"] = [before // MIB, during // MIB, used() // MIB]

    # Level 2: both are lost, and the program fills them again.
    saved = small.cpu()
    before = used()
    receipt = lowtide.discard("weights", "kv_cache")[0]
    assert receipt.verdict == "released" and before - used() > size + cache.nbytes - SLACK
    report["level_2_mib"] = [before // MIB, used() // MIB]
    assert lowtide.wake() > 0
    small.copy_(saved)
    cache.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected), "the graph gives another answer after level 2"
    backups = [one.backup_bytes for one in lowtide.tags()]
    assert sum(backups) == 0, backups

    # What was kept asleep is given up.
    lowtide.sleep("weights")
    lowtide.discard("weights")
    assert lowtide.wake("weights") > 0
    del weights, small, cache, graph, out, static, expected
    gc.collect()
    torch.cuda.empty_cache()
    live = {one.name: one.on_device_bytes for one in lowtide.tags()}
    assert live["weights"] == live["kv_cache"] == 0, live


def scopes() -> None:
    """Nested scopes: each allocation has the tag of the innermost; a scope's free segments go back."""
    with lowtide.tag("outer"):
        first = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        with lowtide.tag("inner", policy="discard"):
            second = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
        third = torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")
        passing = torch.ones(128 * MIB, dtype=torch.uint8, device="cuda")
        del passing
    plain = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
    got = {one.name: one.on_device_bytes // MIB for one in lowtide.tags()}
    assert (got["outer"], got["inner"]) == (80, 32), got
    with lowtide.tag("outer"):
        try:
            lowtide.sleep("outer")
            raise AssertionError("a tag with an open scope fell asleep")
        except lowtide.TagError as error:
            print(error)
    lowtide.sleep("outer", "inner")
    try:
        with lowtide.tag("outer"):
            raise AssertionError("a scope of a sleeping tag opened")
    except lowtide.TagError as error:
        print(error)
    assert int(plain.sum()) == 8 * MIB
    lowtide.wake()
    assert int(first.long().sum()) == 64 * MIB and int(third.long().sum()) == 16 * MIB
    del second


def threads() -> None:
    """Another thread's allocations are not tagged; a tensor may die on another thread."""
    held: list[torch.Tensor] = []

    def other() -> None:
        held.append(torch.ones(64 * MIB, dtype=torch.uint8, device="cuda"))

    with lowtide.tag("threads"):
        held.append(torch.ones(48 * MIB, dtype=torch.uint8, device="cuda"))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    got = {one.name: one.on_device_bytes // MIB for one in lowtide.tags()}
    assert got["threads"] == 48, got

    def drop() -> None:
        held.clear()
        torch.cuda.empty_cache()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    got = {one.name: one.on_device_bytes // MIB for one in lowtide.tags()}
    assert got["threads"] == 0, got


def out_of_memory() -> None:
    _, total = torch.cuda.mem_get_info()
    try:
        with lowtide.tag("large"):
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        notes = getattr(error, "__notes__", [])
        assert any("lowtide" in note for note in notes), notes
        report["out_of_memory"] = notes
    else:
        raise AssertionError("there was memory for twice the device")
    # And the next allocations are right.
    with lowtide.tag("large"):
        one = torch.ones(4 * MIB, dtype=torch.uint8, device="cuda")
    assert int(one.long().sum()) == 4 * MIB


def expandable() -> None:
    """With expandable segments torch would ask no allocator: they are off inside the scope."""
    write(torch, "expandable_segments:True")
    try:
        with lowtide.tag("expandable"):
            one = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        two = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        got = {one.name: one.on_device_bytes // MIB for one in lowtide.tags()}
        assert got["expandable"] == 64, got
        segments = torch.cuda.memory_snapshot()
        kinds = {segment["address"]: segment.get("is_expandable") for segment in segments}
        report["expandable"] = [kinds.get(one.data_ptr()), kinds.get(two.data_ptr())]
        assert kinds.get(one.data_ptr()) is False
        assert any(kinds.values()), "expandable segments are not on again"
    finally:
        write(torch, "expandable_segments:False")


def freed() -> None:
    """Memory that tensors let go, and that torch empties, is the device's again; work in flight is waited for."""
    before = used()
    with lowtide.tag("freed"):
        large = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(50):
            large.add_(1)
    large.record_stream(side)
    del large
    torch.cuda.empty_cache()
    assert used() - before < SLACK, (before, used())
    # A tensor dies while its tag sleeps.
    with lowtide.tag("freed"):
        large = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
        other = torch.full((64 * MIB,), 3, dtype=torch.uint8, device="cuda")
    lowtide.sleep("freed")
    del large
    torch.cuda.empty_cache()
    back = lowtide.wake("freed")
    assert back == 64 * MIB, back
    assert int(other.long().sum()) == 3 * 64 * MIB


def ledger() -> None:
    """While a tag sleeps, the ledger of the device adds up without it."""
    with lowtide.tag("ledger"):
        held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    lowtide.sleep("ledger")
    receipt = lowtide.release()
    print(receipt.detailed())
    text = str(receipt.ledger) if getattr(receipt, "ledger", None) else receipt.detailed()
    report["ledger_asleep"] = text.splitlines()
    lowtide.wake("ledger")
    assert int(held.long().sum()) == 1 << 30


def back_end() -> None:
    """vLLM's sleep back end on the device, without vLLM: an empty class stands in for its abstract one."""
    import types

    class SleepModeBackend:
        def __init__(self) -> None:
            self._state = "RUNNING"

    slot = types.ModuleType("vllm.device_allocator.sleep_mode_backend")
    slot.SleepModeBackend = SleepModeBackend
    for name in ("vllm", "vllm.device_allocator"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[slot.__name__] = slot
    from lowtide._adopt import vllm

    class Worker:
        vllm_config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(sleep_mode_backend="lowtide", enable_sleep_mode=True)
        )

        def _maybe_get_memory_pool_context(self, tag: str):
            raise AssertionError("the worker's own method was called")

    vllm.give_memory(types.SimpleNamespace(Worker=Worker))
    from lowtide._adopt.vllm_sleep import LowtideBackend

    def scope(tag: str):
        return Worker()._maybe_get_memory_pool_context(tag)

    engine, held = LowtideBackend(), {}
    with scope("weights"):
        held["weights"] = torch.randn(2 << 28, device="cuda")  # 2 GiB
    cache = scope("kv_cache")  # As vLLM does it: made outside, entered inside.
    with scope("runtime"):
        held["runtime"] = torch.arange(1 << 20, device="cuda")
        with cache:
            held["cache"] = torch.zeros(1 << 29, dtype=torch.float32, device="cuda")
    sums = {name: float(one.double().sum()) for name, one in held.items()}
    size = sum(one.nbytes for one in held.values())
    for level in (1, 2):
        torch.cuda.synchronize()
        before = used()
        timed(f"back_end_suspend_{level}_ms", partial(engine.suspend, level))
        torch.cuda.synchronize()
        during = used()
        assert before - during > size - SLACK and engine.state() == "SUSPENDED"
        timed(f"back_end_resume_{level}_ms", lambda: engine.resume(["weights"]))
        assert engine.state() == "RESUMING"
        engine.resume(["kv_cache"])
        assert engine.state() == "RUNNING"
        report[f"back_end_{level}_mib"] = [before // MIB, during // MIB, used() // MIB]
        assert float(held["runtime"].double().sum()) == sums["runtime"]
        if level == 1:
            assert float(held["weights"].double().sum()) == sums["weights"]
    held.clear()


def end() -> None:
    """Ends with tagged tensors alive, one of them asleep, and with a scope that was never left."""
    with lowtide.tag("one"):
        one = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    with lowtide.tag("two"):
        globals()["two"] = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    lowtide.sleep("two")
    scope = lowtide.tag("three")
    scope.__enter__()
    globals()["kept"] = (scope, one, torch.ones(64 * MIB, dtype=torch.uint8, device="cuda"))
    # From Python 3.12 on a fork with threads warns, and torch has threads.
    warnings.simplefilter("ignore", DeprecationWarning)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not lowtide.tags() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    print("end", flush=True)


def child() -> None:
    command = [sys.executable, __file__, "--end"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    report["end"] = [done.returncode, done.stderr[-2000:]]
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", ""), done


if __name__ == "__main__":
    main()
