"""Asks the driver's quiet functions awake and asleep: the answers must be the same, and none may wake the process.

    lowtide run -- python3 quiet.py --lowtide ./lowtide

A function that the agent lets through while the process sleeps must not need the memory that has left. Functions
that take something away are called on two objects that are alike. Exits 0 only if every answer is the same.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial

from command_line import ask, end, parser_of
from driver import MIB, Word, call, holds, make, registered_page

DATA = b"\x5a" * (32 * MIB)
PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .entry nothing(.param .u64 at) { ret; }
\0"""

Answer = tuple[int, bytes]
Question = Callable[[], Answer]
quiet: dict[str, Question] = {}
# By name: what makes an object, and what takes it away.
ending: dict[str, tuple[Callable[[], int], Callable[[int], int]]] = {}


def out() -> ctypes.Array[ctypes.c_char]:
    """Returns a place for an answer. Stands in the questions for a new one each time."""
    return ctypes.create_string_buffer(256)


def eight() -> Word:
    """Returns a count of places, which the driver overwrites with what it has."""
    return Word(8)


def answer(name: str, *arguments: object) -> Answer:
    """Asks a question; returns the code, and what is in its places then."""
    places = [one() if callable(one) else one for one in arguments]
    code = call(name, *[ctypes.byref(one) if isinstance(one, Word) else one for one in places])
    written = [place for place, one in zip(places, arguments, strict=True) if callable(one)]
    return code, b"".join(map(bytes, written))


def world() -> int:
    """Makes one object of each kind, and all questions about them. Returns memory that has data."""
    assert call("cuInit", 0) == 0
    context = make("cuDevicePrimaryCtxRetain", 0)
    call("cuCtxSetCurrent", context)
    block = make("cuMemAlloc_v2", len(DATA))
    assert call("cuMemcpyHtoD_v2", block, DATA, len(DATA)) == 0
    small = make("cuMemAlloc_v2", 4096)
    pinned = make("cuMemHostAlloc", 4096, 0)
    module = make("cuModuleLoadData", PTX)
    function = make("cuModuleGetFunction", module, b"nothing\0")
    library = make("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = make("cuLibraryGetKernel", library, b"nothing\0")
    stream = make("cuStreamCreate", 1)
    event, later = make("cuEventCreate", 0), make("cuEventCreate", 0)
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

    questions: list[tuple[object, ...]] = [
        ("cuCtxGetCurrent", out),
        ("cuCtxGetDevice", out),
        ("cuCtxGetFlags", out),
        ("cuDeviceGetCount", out),
        ("cuDriverGetVersion", out),
        ("cuCtxGetId", context, out),
        ("cuCtxGetApiVersion", context, out),
        ("cuCtxGetLimit", out, 0),
        ("cuCtxGetCacheConfig", out),
        ("cuCtxGetStreamPriorityRange", out, out),
        ("cuCtxPushCurrent_v2", context),
        ("cuCtxPopCurrent_v2", out),
        ("cuCtxSetCurrent", context),
        ("cuDeviceGet", out, 0),
        ("cuDeviceGetAttribute", out, 16, 0),
        ("cuDeviceGetName", out, 128, 0),
        ("cuDeviceGetPCIBusId", out, 128, 0),
        ("cuDeviceTotalMem_v2", out, 0),
        ("cuDeviceGetUuid_v2", out, 0),
        ("cuDeviceGetDefaultMemPool", out, 0),
        ("cuDeviceGetMemPool", out, 0),
        ("cuDevicePrimaryCtxGetState", 0, out, out),
        ("cuDeviceGetGraphMemAttribute", 0, 0, out),
        ("cuDeviceGraphMemTrim", 0),
        ("cuEventQuery", event),
        ("cuEventElapsedTime", out, event, later),
        ("cuFuncGetModule", out, function),
        ("cuFuncGetName", out, function),
        ("cuFuncGetParamInfo", function, 0, out, out),
        ("cuFuncIsLoaded", out, function),
        ("cuKernelGetName", out, kernel),
        ("cuKernelGetLibrary", out, kernel),
        ("cuLibraryGetKernelCount", out, library),
        ("cuModuleGetFunctionCount", out, module),
        ("cuModuleGetLoadingMode", out),
        ("cuGraphGetNodes", graph, out, eight),
        ("cuGraphGetRootNodes", graph, out, eight),
        ("cuGraphNodeGetType", node, out),
        ("cuGraphEventRecordNodeGetEvent", recorded, out),
        ("cuGraphNodeGetEnabled", executable, node, out),
        ("cuGraphExecGetFlags", executable, out),
        ("cuMemGetAddressRange_v2", out, out, block + 4096),
        ("cuMemHostGetDevicePointer_v2", out, pinned, 0),
        ("cuMemHostGetFlags", out, pinned),
        ("cuMemPoolGetAttribute", pool, 4, out),
        ("cuMemPoolTrimTo", pool, 0),
        ("cuArrayGetDescriptor_v2", out, array),
        ("cuStreamGetFlags", stream, out),
        ("cuStreamGetPriority", stream, out),
        ("cuStreamGetId", stream, out),
        ("cuStreamGetCtx", stream, out),
        ("cuStreamIsCapturing", stream, out),
        ("cuStreamGetCaptureInfo_v2", stream, out),
        ("cuStreamQuery", stream),
        ("cuGetErrorName", 2, out),
        ("cuGetProcAddress_v2", b"cuLaunchKernel\0", out, 12000, 0, out),
    ]
    quiet.update({str(name): partial(answer, str(name), *more) for name, *more in questions})
    for attribute in [1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17]:
        name = f"cuPointerGetAttribute {attribute}"
        quiet[name] = partial(answer, "cuPointerGetAttribute", out, attribute, block + 64)
        quiet[f"{name}, small"] = partial(answer, "cuPointerGetAttribute", out, attribute, small)
    quiet["cuGraphClone"] = lambda: (0 if make("cuGraphClone", graph) else 1, b"")
    quiet["cuMemGetInfo_v2 (total)"] = total
    quiet["cuThreadExchangeStreamCaptureMode"] = exchange

    objects: list[tuple[object, ...]] = [
        ("cuMemFree_v2", "cuMemAlloc_v2", 4 * MIB),
        ("cuMemFree_v2, small", "cuMemAlloc_v2", 8192),
        ("cuMemFreeHost", "cuMemHostAlloc", 8192, 0),
        ("cuStreamDestroy_v2", "cuStreamCreate", 1),
        ("cuEventDestroy_v2", "cuEventCreate", 0),
        ("cuGraphDestroy", "cuGraphCreate", 0),
        ("cuGraphExecDestroy", "cuGraphInstantiateWithFlags", graph, 0),
        ("cuModuleUnload", "cuModuleLoadData", PTX),
        ("cuArrayDestroy", "cuArrayCreate_v2", shape),
    ]
    for name, *how in objects:
        ending[str(name)] = (partial(make, *how), partial(call, str(name).partition(",")[0]))
    ending["cuMemFreeAsync"] = (
        lambda: make("cuMemAlloc_v2", 4 * MIB),
        lambda at: call("cuMemFreeAsync", at, stream),
    )
    ending["cuMemHostUnregister"] = (registered_page, partial(call, "cuMemHostUnregister"))
    return block


def total() -> Answer:
    """Asks for the size of the device; what is free differs."""
    free, whole = Word(), Word()
    return call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole)), bytes(whole)


def exchange() -> Answer:
    """Changes a mode of the thread and changes it back."""
    mode = ctypes.c_int(2)
    code = call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    before = bytes(mode)
    return code or call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)), before


def main() -> None:
    options = parser_of(__doc__).parse_args()
    agent = partial(ask, options.lowtide)
    block = world()
    pairs = {name: (made(), made()) for name, (made, _) in ending.items()}
    awake = {name: question() for name, question in quiet.items()}
    ended = {name: ending[name][1](one) for name, (one, _) in pairs.items()}
    slept = agent("sleep", os.getpid())
    failures = [] if slept.get("receipts") else [f"it did not sleep: {slept}"]

    def still_asleep(name: str) -> None:
        if not agent("status", os.getpid()).get("is_asleep"):
            failures.append(f"{name} woke the process")
            agent("sleep", os.getpid())

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
    if not holds(block, DATA):
        failures.append("the data are not what they were")
    refused = [name for name, (code, _) in awake.items() if code != 0]
    refused += [name for name, code in ended.items() if code != 0]
    print(f"{len(quiet) + len(pairs)} functions, {len(failures)} failures")
    print(f"refused awake and asleep: {', '.join(refused) or 'none'}")
    end(failures)


main()
