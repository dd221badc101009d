"""Asks the driver's quiet functions awake and asleep: the answers must be the same, and none may wake the process.

    lowtide run -- python3 quiet.py --lowtide ./lowtide

A function that the agent lets through while the process sleeps must not need the memory that has left. Functions
that take something away are called on two objects that are alike. Exits 0 only if every answer is the same.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable

MIB = 1 << 20
PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .entry nothing(.param .u64 at) { ret; }
\0"""

cuda = ctypes.CDLL("libcuda.so.1")
Word = ctypes.c_uint64


def call(name: str, *arguments: object) -> int:
    try:
        function = getattr(cuda, name)
    except AttributeError:
        return 500
    return int(function(*[Word(one) if isinstance(one, int) else one for one in arguments]))


def make(name: str, *arguments: object) -> int:
    """Calls a function that writes a handle first; returns the handle."""
    handle = Word()
    code = call(name, ctypes.byref(handle), *arguments)
    if code != 0:
        print(f"{name} answered {code}; what needs it is asked all the same")
    return handle.value


Answer = tuple[int, bytes]
Question = Callable[[], Answer]
quiet: dict[str, Question] = {}
# By name: what makes an object, and what takes it away.
ending: dict[str, tuple[Callable[[], int], Callable[[int], int]]] = {}


def ask(name: str, *arguments: object, out: int = 1, last: tuple[object, ...] = ()) -> None:
    """Adds a question whose answer is written to so many places before or after the arguments."""

    def question() -> Answer:
        places = [ctypes.create_string_buffer(128) for _ in range(out)]
        code = call(name, *places, *arguments, *last)
        return code, b"".join(place.raw for place in places)

    quiet[f"{name} {arguments}" if name in quiet else name] = question


def about(name: str, *arguments: object, out: int = 1) -> None:
    """Adds a question whose answer is written behind its arguments."""

    def question() -> Answer:
        places = [ctypes.create_string_buffer(256) for _ in range(out)]
        return call(name, *arguments, *places), b"".join(place.raw for place in places)

    quiet[name] = question


def world() -> tuple[int, list[object]]:
    """Makes one object of each kind, and all questions about them."""
    assert call("cuInit", 0) == 0
    context = make("cuDevicePrimaryCtxRetain", 0)
    call("cuCtxSetCurrent", context)
    block = make("cuMemAlloc_v2", 32 * MIB)
    assert call("cuMemcpyHtoD_v2", block, b"\x5a" * (32 * MIB), 32 * MIB) == 0
    small = make("cuMemAlloc_v2", 4096)
    pinned = make("cuMemHostAlloc", 4096, 0)
    module = make("cuModuleLoadData", PTX)
    function = make("cuModuleGetFunction", module, b"nothing\0")
    library = make("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = make("cuLibraryGetKernel", library, b"nothing\0")
    stream, event, later = (
        make("cuStreamCreate", 1),
        make("cuEventCreate", 0),
        make("cuEventCreate", 0),
    )
    call("cuEventRecord", event, stream)
    call("cuEventRecord", later, stream)
    call("cuCtxSynchronize")
    graph = make("cuGraphCreate", 0)
    node = make("cuGraphAddEmptyNode", graph, None, 0)
    recorded = make("cuGraphAddEventRecordNode", graph, None, 0, event)
    executable = make("cuGraphInstantiateWithFlags", graph, 0)
    pool = make("cuDeviceGetDefaultMemPool", 0)
    shape = (Word * 4)(64, 64, 0x20 | (1 << 32), 0)  # 64 x 64 floats of one channel
    array = make("cuArrayCreate_v2", shape)

    for name in [
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuCtxGetFlags",
        "cuDeviceGetCount",
        "cuDriverGetVersion",
    ]:
        ask(name)
    ask("cuCtxGetId", last=(0,))
    quiet["cuCtxGetId"] = lambda: with_word("cuCtxGetId", context)
    about("cuCtxGetApiVersion", context)
    ask("cuCtxGetLimit", 0)
    ask("cuCtxGetCacheConfig")
    ask("cuCtxGetStreamPriorityRange", out=2)
    quiet["cuCtxPushCurrent_v2"] = lambda: (call("cuCtxPushCurrent_v2", context), b"")
    quiet["cuCtxPopCurrent_v2"] = lambda: with_word("cuCtxPopCurrent_v2")
    quiet["cuCtxSetCurrent"] = lambda: (call("cuCtxSetCurrent", context), b"")
    ask("cuDeviceGet", 0)
    ask("cuDeviceGetAttribute", 16, 0)
    quiet["cuDeviceGetName"] = lambda: sized("cuDeviceGetName", 0)
    quiet["cuDeviceGetPCIBusId"] = lambda: sized("cuDeviceGetPCIBusId", 0)
    ask("cuDeviceTotalMem_v2", 0)
    ask("cuDeviceGetUuid_v2", 0)
    ask("cuDeviceGetDefaultMemPool", 0)
    ask("cuDeviceGetMemPool", 0)
    quiet["cuDevicePrimaryCtxGetState"] = lambda: state()
    ask("cuDeviceGetGraphMemAttribute", 0, 0)
    quiet["cuDeviceGetGraphMemAttribute"] = lambda: with_word_behind(
        "cuDeviceGetGraphMemAttribute", 0, 0
    )
    quiet["cuDeviceGraphMemTrim"] = lambda: (call("cuDeviceGraphMemTrim", 0), b"")
    quiet["cuEventQuery"] = lambda: (call("cuEventQuery", event), b"")
    ask("cuEventElapsedTime", event, later)
    ask("cuFuncGetModule", function)
    ask("cuFuncGetName", function)
    about("cuFuncGetParamInfo", function, 0, out=2)
    about("cuFuncIsLoaded", function)
    quiet["cuFuncIsLoaded"] = lambda: with_word("cuFuncIsLoaded", function)
    ask("cuKernelGetName", kernel)
    ask("cuKernelGetLibrary", kernel)
    ask("cuLibraryGetKernelCount", library)
    ask("cuModuleGetFunctionCount", module)
    ask("cuModuleGetLoadingMode")
    quiet["cuGraphGetNodes"] = lambda: listed("cuGraphGetNodes", graph)
    quiet["cuGraphGetRootNodes"] = lambda: listed("cuGraphGetRootNodes", graph)
    about("cuGraphNodeGetType", node)
    about("cuGraphEventRecordNodeGetEvent", recorded)
    quiet["cuGraphNodeGetEnabled"] = lambda: with_word_behind(
        "cuGraphNodeGetEnabled", executable, node
    )
    about("cuGraphExecGetFlags", executable)
    quiet["cuGraphClone"] = lambda: (0 if make("cuGraphClone", graph) else 1, b"")
    ask("cuMemGetAddressRange_v2", block + 4096, out=2)
    quiet["cuMemGetInfo_v2 (total)"] = lambda: total()
    ask("cuMemHostGetDevicePointer_v2", pinned, 0)
    ask("cuMemHostGetFlags", pinned)
    for attribute in [1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17]:
        quiet[f"cuPointerGetAttribute {attribute}"] = described(attribute, block + 64)
        quiet[f"cuPointerGetAttribute {attribute}, small"] = described(attribute, small)
    about("cuMemPoolGetAttribute", pool, 4)
    quiet["cuMemPoolTrimTo"] = lambda: (call("cuMemPoolTrimTo", pool, 0), b"")
    ask("cuArrayGetDescriptor_v2", array)
    about("cuStreamGetFlags", stream)
    about("cuStreamGetPriority", stream)
    about("cuStreamGetId", stream)
    about("cuStreamGetCtx", stream)
    about("cuStreamIsCapturing", stream)
    about("cuStreamGetCaptureInfo_v2", stream)
    quiet["cuStreamQuery"] = lambda: (call("cuStreamQuery", stream), b"")
    quiet["cuThreadExchangeStreamCaptureMode"] = lambda: exchange()
    quiet["cuGetErrorName"] = lambda: with_word_behind("cuGetErrorName", 2)
    quiet["cuGetProcAddress_v2"] = lambda: address()

    ending["cuMemFree_v2"] = (
        lambda: make("cuMemAlloc_v2", 4 * MIB),
        lambda at: call("cuMemFree_v2", at),
    )
    ending["cuMemFree_v2, small"] = (
        lambda: make("cuMemAlloc_v2", 8192),
        lambda at: call("cuMemFree_v2", at),
    )
    ending["cuMemFreeAsync"] = (
        lambda: make("cuMemAlloc_v2", 4 * MIB),
        lambda at: call("cuMemFreeAsync", at, stream),
    )
    ending["cuMemFreeHost"] = (
        lambda: make("cuMemHostAlloc", 8192, 0),
        lambda at: call("cuMemFreeHost", at),
    )
    ending["cuStreamDestroy_v2"] = (
        lambda: make("cuStreamCreate", 1),
        lambda one: call("cuStreamDestroy_v2", one),
    )
    ending["cuEventDestroy_v2"] = (
        lambda: make("cuEventCreate", 0),
        lambda one: call("cuEventDestroy_v2", one),
    )
    ending["cuGraphDestroy"] = (
        lambda: make("cuGraphCreate", 0),
        lambda one: call("cuGraphDestroy", one),
    )
    ending["cuGraphExecDestroy"] = (
        lambda: make("cuGraphInstantiateWithFlags", graph, 0),
        lambda one: call("cuGraphExecDestroy", one),
    )
    ending["cuModuleUnload"] = (
        lambda: make("cuModuleLoadData", PTX),
        lambda one: call("cuModuleUnload", one),
    )
    ending["cuArrayDestroy"] = (
        lambda: make("cuArrayCreate_v2", shape),
        lambda one: call("cuArrayDestroy", one),
    )
    ending["cuMemHostUnregister"] = (registered, lambda at: call("cuMemHostUnregister", at))
    return block, [shape]


def with_word(name: str, *arguments: object) -> Answer:
    """The answer is one word, in the place that the function has for it."""
    word = Word()
    before = name in ("cuFuncIsLoaded", "cuCtxPopCurrent_v2")
    places = [ctypes.byref(word), *arguments] if before else [*arguments, ctypes.byref(word)]
    return call(name, *places), bytes(word)


def with_word_behind(name: str, *arguments: object) -> Answer:
    word = Word()
    return call(name, *arguments, ctypes.byref(word)), bytes(word)


def sized(name: str, device: int) -> Answer:
    text = ctypes.create_string_buffer(128)
    return call(name, text, 128, device), text.raw


def state() -> Answer:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    code = call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    return code, bytes(flags) + bytes(active)


def listed(name: str, graph: int) -> Answer:
    nodes, count = (Word * 8)(), Word(8)
    return call(name, graph, nodes, ctypes.byref(count)), bytes(nodes) + bytes(count)


def total() -> Answer:
    free, whole = Word(), Word()
    return call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole)), bytes(whole)


def described(attribute: int, at: int) -> Question:
    def question() -> Answer:
        place = ctypes.create_string_buffer(64)
        return call("cuPointerGetAttribute", place, attribute, at), place.raw

    return question


def exchange() -> Answer:
    mode = ctypes.c_int(2)
    code = call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    before = bytes(mode)
    return code or call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)), before


def address() -> Answer:
    found, status = Word(), ctypes.c_int()
    arguments = [b"cuLaunchKernel\0", ctypes.byref(found), 12000, 0, ctypes.byref(status)]
    return call("cuGetProcAddress_v2", *arguments), bytes(found)


pages: list[ctypes.Array[ctypes.c_char]] = []


def registered() -> int:
    page = ctypes.create_string_buffer(3 * 4096)
    pages.append(page)
    at = (ctypes.addressof(page) + 4095) // 4096 * 4096
    assert call("cuMemHostRegister_v2", at, 4096, 0) == 0
    return at


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lowtide", default="lowtide", help="the program `lowtide`")
    options = parser.parse_args()
    outside = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    def agent(verb: str) -> dict[str, object]:
        command = [options.lowtide, verb, str(os.getpid()), "--json"]
        done = subprocess.run(
            command, env=outside, capture_output=True, text=True, timeout=60, check=False
        )
        return dict(json.loads(done.stdout)) if done.stdout.strip() else {"error": done.stderr}

    block, _kept = world()
    pairs = {name: (made(), made()) for name, (made, _) in ending.items()}
    awake = {name: question() for name, question in quiet.items()}
    ended = {name: ending[name][1](one) for name, (one, _) in pairs.items()}
    slept = agent("sleep")
    failures = [] if slept.get("receipts") else [f"it did not sleep: {slept}"]

    def still_asleep(name: str) -> None:
        if not agent("status").get("is_asleep"):
            failures.append(f"{name} woke the process")
            agent("sleep")

    for name, question in quiet.items():
        answer = question()
        still_asleep(name)
        if answer != awake[name]:
            failures.append(f"{name}: {awake[name]} awake, {answer} asleep")
    for name, (_, other) in pairs.items():
        code = ending[name][1](other)
        still_asleep(name)
        if code != ended[name]:
            failures.append(f"{name}: {ended[name]} awake, {code} asleep")
    found = ctypes.create_string_buffer(32 * MIB)
    code = call("cuMemcpyDtoH_v2", found, block, 32 * MIB)
    if code != 0 or found.raw != b"\x5a" * (32 * MIB):
        failures.append(f"the data are not what they were ({code})")
    refused = [name for name, (code, _) in awake.items() if code != 0]
    refused += [name for name, code in ended.items() if code != 0]
    print(f"{len(quiet) + len(pairs)} functions, {len(failures)} failures")
    print(f"refused awake and asleep: {', '.join(refused) or 'none'}")
    for failure in failures:
        print(f"failed: {failure}")
    sys.exit(bool(failures))


main()
