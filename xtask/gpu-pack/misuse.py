"""Misuses every function that the agent answers itself, without and with the agent; the answers must be the same.

    python3 misuse.py --lowtide ./lowtide --agent ./liblowtide_agent.so --results misuse.tsv

A row below names the kind of each argument of a function, and the right value where it is not the kind's first.
A case is a right call in which one argument is of another value of its kind (zero, huge, null, freed, interior,
foreign), or that is made without a context or in another one. Where the driver ends the process, anything is right.
Each case has memory of its own and prints the driver's code, and what reading that memory then gives. Each function
has a process of its own, which sleeps and wakes after its cases: what could be read before has the same bytes.
Exits 0 only if every answer is the same.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from command_line import ask as ask_lowtide
from command_line import parser_of
from driver import MIB, Word, call, make, pinned_on

LARGE, SMALL = 4 * MIB, 1 << 16
MARK = b"0123456789abcdef"
HUGE = 1 << 62
MOST = (1 << 64) - 1

# Functions of one kind stand together.
ARGUMENTS = {
    "cuArray3DCreate_v2": "out shape3",
    "cuArrayCreate_v2": "out shape",
    "cuArrayDestroy": "array",
    "cuCtxCreate cuCtxCreate_v2": "out flags device",
    "cuCtxCreate_v3": "out none zero flags device",
    "cuCtxCreate_v4": "out none flags device",
    "cuCtxDestroy cuCtxDestroy_v2": "context",
    "cuCtxEnablePeerAccess": "context flags",
    "cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2": "device",
    "cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2": "device",
    "cuDevicePrimaryCtxRetain": "out device",
    "cuEventDestroy cuEventDestroy_v2": "event",
    "cuGetProcAddress": "name out version flags64",
    "cuGetProcAddress_v2": "name out version flags64 out",
    "cuGreenCtxCreate": "out none device flags",
    "cuGreenCtxDestroy": "none",
    "cuInit": "flags",
    "cuIpcCloseMemHandle": "at",
    "cuIpcGetMemHandle": "out at",
    "cuIpcOpenEventHandle": "out ipc",
    "cuIpcOpenMemHandle cuIpcOpenMemHandle_v2": "out ipc flags",
    "cuMemAddressFree": "at:reserved size",
    "cuMemAllocAsync cuMemAllocAsync_ptsz": "out size stream",
    "cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz": "out size pool stream",
    "cuMemAllocManaged": "out size attach",
    "cuMemAllocPitch_v2": "out out size height element",
    "cuMemAlloc_v2": "out size",
    "cuMemCreate": "out size properties flags64",
    "cuMemExportToShareableHandle": "out handle shared flags64",
    "cuMemFreeAsync cuMemFreeAsync_ptsz": "at:of_a_pool stream",
    "cuMemFree_v2": "at",
    "cuDeviceTotalMem cuDeviceTotalMem_v2": "out zero",
    "cuMemGetAddressRange_v2": "out out at",
    "cuMemGetAllocationPropertiesFromHandle": "out handle",
    "cuMemGetInfo cuMemGetInfo_v2": "out out",
    "cuMemImportFromShareableHandle": "out descriptor shared",
    "cuMemMap": "at:reserved size offset handle:right flags64",
    "cuMemMapArrayAsync cuMemMapArrayAsync_ptsz": "tiles zero stream",
    "cuMemRelease": "handle",
    "cuMemRetainAllocationHandle": "out at:mapped",
    "cuMemSetAccess": "at:mapped size access count",
    "cuMemUnmap": "at:mapped size",
    "cuPointerGetAttribute": "out attribute at",
    "cuPointerGetAttributes": "count kinds places at",
    "cuPointerSetAttribute": "off attribute:synchronous at",
    "cuStreamBeginCapture cuStreamBeginCapture_ptsz": "stream",
    "cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz": "stream graph none none zero mode",
    "cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz": "stream mode",
    "cuStreamDestroy cuStreamDestroy_v2": "stream",
    "cuStreamEndCapture cuStreamEndCapture_ptsz": "capturing out",
}
ROWS = {name: kinds for names, kinds in ARGUMENTS.items() for name in names.split()}


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class World:
    """The memory of one case, and the right and wrong values of each kind of argument."""

    def __init__(self) -> None:
        self.context = make("cuDevicePrimaryCtxRetain", 0)
        call("cuCtxSetCurrent", self.context)
        self.kept: list[object] = []
        self.streams: list[int] = []
        self.large, self.small = make("cuMemAlloc_v2", LARGE), make("cuMemAlloc_v2", SMALL)
        # The second half stays empty.
        self.at = make("cuMemAddressReserve", 2 * LARGE, 0, 0, 0)
        self.handle = self.memory(LARGE)
        call("cuMemMap", self.at, LARGE, 0, self.handle, 0)
        call("cuMemSetAccess", self.at, LARGE, self.access(0), 1)
        for at in (self.large, self.small, self.at):
            call("cuMemcpyHtoD_v2", at, MARK, len(MARK))
        # Values, and functions that make them.
        self.kinds: dict[str, dict[str, object]] = {
            "out": {"right": lambda: self.keep((Word * 64)()), "null": None},
            "none": {"right": None},
            "zero": {"right": 0, "huge": 1 << 31},
            "flags": {"right": 0, "huge": 0xFFFF_FFFF},
            "flags64": {"right": 0, "huge": HUGE},
            "count": {"right": 1, "zero": 0, "huge": HUGE},
            "offset": {"right": 0, "odd": 1, "huge": HUGE},
            "version": {"right": 12000, "zero": 0, "huge": 0x7FFF_FFFF},
            "attach": {"right": 1, "zero": 0, "huge": 0xFFFF},
            "element": {"right": 4, "zero": 0, "odd": 3},
            "height": {"right": 2, "zero": 0, "huge": HUGE},
            "mode": {"right": 0, "huge": 99},
            "attribute": {"right": 12, "synchronous": 6, "zero": 0, "huge": 9999},
            "off": {"right": lambda: self.keep((ctypes.c_int * 2)()), "null": None},
            "name": {"right": b"cuMemAlloc\0", "foreign": b"cuNobodyHasThis\0", "null": None},
            "size": {
                "right": LARGE,
                "zero": 0,
                "one": 1,
                "half": LARGE // 2,
                "odd": LARGE + 1,
                "double": 2 * LARGE,
                "huge": HUGE,
                "most": MOST,
            },
            "device": {"right": 0, "negative": 0xFFFF_FFFF, "huge": 99},
            "shape": self.structure(64, 64, 0x20 | 1 << 32),
            "shape3": self.structure(64, 64, 0, 0x20 | 1 << 32, 0),
            "tiles": {"right": lambda: self.keep((Word * 12)()), "null": None},
            "kinds": {"right": lambda: self.keep((ctypes.c_int * 2)(12)), "null": None},
            "places": {"right": self.places, "null": None},
            "properties": {
                "right": lambda: self.properties(0),
                "null": None,
                "foreign": lambda: self.properties(99),
                "zero": lambda: self.keep((ctypes.c_uint32 * 64)()),
            },
            "access": {
                "right": lambda: self.access(0),
                "null": None,
                "foreign": lambda: self.access(99),
                "huge": lambda: self.access(0, 99),
            },
            "at": {
                "large": self.large,
                "small": self.small,
                "mapped": self.at,
                "zero": 0,
                "huge": 1 << 63,
                "most": MOST,
                "interior": self.large + 5,
                "second page": self.large + LARGE // 2,
                "behind": self.at + LARGE,
                "interior mapped": self.at + LARGE // 2,
                "interior small": self.small + 256,
                "freed": lambda: self.freed(LARGE),
                "freed small": lambda: self.freed(SMALL),
                "reserved": lambda: make("cuMemAddressReserve", LARGE, 0, 0, 0),
                "returned": self.returned,
                "managed": lambda: make("cuMemAllocManaged", LARGE, 1),
                "pinned": lambda: make("cuMemHostAlloc", LARGE, 0),
                "host": lambda: ctypes.addressof(self.keep((ctypes.c_char * LARGE)())),
                "of_a_pool": lambda: make("cuMemAllocAsync", LARGE, 0),
                "of another context": lambda: self.elsewhere("cuMemAlloc_v2", LARGE),
            },
            "handle": {
                "mapped": self.handle,
                "right": lambda: self.memory(LARGE),
                "half": lambda: self.memory(LARGE // 2),
                "zero": 0,
                "huge": MOST,
                "foreign": 0x1D7E_0000_0000_FFFF,
                "released": self.released,
                "address": self.large,
            },
            # A file descriptor; none, and one of a file that has nothing to do with it.
            "shared": {"right": 1, "zero": 0, "huge": 0xFFFF},
            "descriptor": {"none": MOST, "foreign": 0},
            "event": self.handles(lambda: make("cuEventCreate", 0), "cuEventDestroy_v2"),
            "array": self.handles(self.array, "cuArrayDestroy"),
            "graph": self.handles(lambda: make("cuGraphCreate", 0), "cuGraphDestroy"),
            "pool": self.handles(
                lambda: make("cuMemPoolCreate", self.properties(0)), "cuMemPoolDestroy"
            ),
            "context": self.handles(self.other, "cuCtxDestroy_v2"),
            "stream": self.handles(self.stream, "cuStreamDestroy_v2") | {"null": 0},
            "capturing": {"right": self.capturing, "quiet": self.stream, "null": 0},
            "ipc": {"zero": IpcHandle, "foreign": lambda: IpcHandle(b"\x5a" * 63)},
        }
        self.states = {"no context": lambda: 0, "another context": self.other}

    def keep(self, value):
        self.kept.append(value)
        return value

    def structure(self, *words: int) -> dict[str, object]:
        def of(*words: int) -> Callable[[], object]:
            return lambda: self.keep((Word * 8)(*words))

        huge = (HUGE, *words[1:])
        return {"right": of(*words), "null": None, "zero": of(), "huge": of(*huge)}

    def handles(self, maker: Callable[[], int], end: str) -> dict[str, object]:
        def gone() -> int:
            handle = maker()
            call(end, handle)
            self.streams = [stream for stream in self.streams if stream != handle]
            return handle

        return {"right": maker, "null": 0, "gone": gone}

    def places(self) -> object:
        place = self.keep((Word * 2)())
        return self.keep((Word * 2)(ctypes.addressof(place)))

    def properties(self, device: int) -> object:
        return self.keep(pinned_on(device))

    def access(self, device: int, flags: int = 3) -> object:
        return self.keep((ctypes.c_uint32 * 6)(1, device, flags))

    def memory(self, size: int) -> int:
        return make("cuMemCreate", size, self.properties(0), 0)

    def freed(self, size: int) -> int:
        at = make("cuMemAlloc_v2", size)
        call("cuMemFree_v2", at)
        return at

    def returned(self) -> int:
        at = make("cuMemAddressReserve", LARGE, 0, 0, 0)
        call("cuMemAddressFree", at, LARGE)
        return at

    def released(self) -> int:
        handle = self.memory(LARGE)
        call("cuMemRelease", handle)
        return handle

    def array(self) -> int:
        return make("cuArrayCreate_v2", self.keep((Word * 4)(64, 64, 0x20 | 1 << 32, 0)))

    def other(self) -> int:
        other = make("cuCtxCreate_v2", 0, 0)
        call("cuCtxSetCurrent", self.context)
        return other

    def elsewhere(self, name: str, *arguments: object) -> int:
        call("cuCtxSetCurrent", self.other())
        made = make(name, *arguments)
        call("cuCtxSetCurrent", self.context)
        return made

    def stream(self) -> int:
        self.streams.append(make("cuStreamCreate", 1))
        return self.streams[-1]

    def capturing(self) -> int:
        stream = self.stream()
        call("cuStreamBeginCapture_v2", stream, 0)
        return stream

    def end(self) -> None:
        """Ends what a case may have begun."""
        call("cuCtxSetCurrent", self.context)
        for stream in self.streams:
            call("cuStreamEndCapture", stream, self.kinds["out"]["right"]())
        for name in ("cuStreamEndCapture", "cuStreamEndCapture_ptsz"):
            call(name, 0, self.kinds["out"]["right"]())

    def read(self) -> str:
        """Reads the memory of this case; returns the codes."""
        codes = []
        for at in filter(None, (self.large, self.small, self.at)):
            found = ctypes.create_string_buffer(len(MARK))
            code = call("cuMemcpyDtoH_v2", found, at, len(MARK))
            codes.append("wrong" if code == 0 and found.raw != MARK else str(code))
        return " ".join(codes)


def cases(world: World, row: str) -> dict[str, tuple[str, list[object]]]:
    """Returns the cases of a function: the current context, and each argument, or how it is made."""
    words = [word.partition(":") for word in ROWS[row].split()]
    kinds = [(name, world.kinds[name], value or next(iter(world.kinds[name]))) for name, _, value in words]
    right = [kind[value] for _, kind, value in kinds]
    found = {"right": ("", right)} | {state: (state, right) for state in world.states}
    for index, (name, kind, right_one) in enumerate(kinds):
        for value in kind:
            if value != right_one:
                case = f"{name} {index}: {value}"
                found[case] = ("", [*right[:index], kind[value], *right[index + 1 :]])
    return found


def child(row: str, after: str) -> None:
    """Goes through the cases of a function, from the one after `after`, sleeps when it is told to, and reads again."""
    assert call("cuInit", 0) == 0
    worlds = [World()]
    left = list(cases(worlds[0], row))
    for case in left[left.index(after) + 1 if after else 0 :]:
        world = World()
        state, made = cases(world, row)[case]
        arguments = [one() if callable(one) else one for one in made]
        if state:
            call("cuCtxSetCurrent", world.states[state]())
        print(case, end="\t", flush=True)
        code = call(row, *arguments)
        if code == 0 and row.startswith("cuStreamDestroy"):
            world.streams.clear()
        # A look at what is not mapped is refused, or costs the context: the driver does either.
        if code == 0 and row == "cuMemUnmap":
            world.at = 0
        world.end()
        # What was freed may be read or not, by whoever has it next.
        is_freed = code == 0 and row.startswith("cuMemFree")
        print(code, "freed" if is_freed else world.read(), sep="\t", flush=True)
        if not is_freed:
            worlds.append(world)
    before = [world.read() for world in worlds]
    print("end", flush=True)
    sys.stdin.readline()
    after = [world.read() for world in worlds]
    wrong = [f"{one} then {other}" for one, other in zip(before, after, strict=True) if one != other]
    print("; ".join(wrong) or "right", flush=True)
    os._exit(0)


def sleep(lowtide: str, pid: int) -> str:
    """Has a process sleep; returns why it does not."""
    slept, status = (ask_lowtide(lowtide, verb, pid) for verb in ("sleep", "status"))
    return "" if status.get("is_asleep") else f"it does not sleep: {slept} {status}"


def ask(row: str, options: argparse.Namespace, agent: str | None) -> dict[str, str]:
    """Returns the answers of a function by case; a case that ended its process is said to have."""
    environment = dict(os.environ)
    if agent:
        environment["LD_PRELOAD"] = agent
    answers: dict[str, str] = {}
    while True:
        after = list(answers)[-1] if answers else ""
        command = [sys.executable, __file__, "--row", row, "--after", after]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            for line in iter(process.stdout.readline, "end\n"):
                if not line.endswith("\n") or not line:
                    break
                case, _, answer = line.strip().partition("\t")
                answers[case] = answer
            else:
                if agent:
                    answers["slept"] = sleep(options.lowtide, process.pid)
                answers["after"] = process.communicate("\n")[0].strip()
                return answers
            process.kill()
        if not line.partition("\t")[0]:
            return answers | {"after": "the process ended"}
        answers[line.partition("\t")[0]] = "ended"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--agent", help="the agent's library")
    parser.add_argument("--results", help="where the driver's own answers go")
    parser.add_argument("--only", nargs="*", default=list(ROWS), help="functions")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--after", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        child(options.row, options.after)
    lines, failures, count = [], [], 0
    # Beside one another only where nobody counts what is free on the device.
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: ask(row, options, None), options.only))
    for row, plain in zip(options.only, answers, strict=True):
        lines += [f"{row}\t{case}\t{answer}\n" for case, answer in plain.items()]
        ours = ask(row, options, options.agent) if options.agent else dict(plain)
        if why := ours.pop("slept", ""):
            failures.append(f"{row}: {why}")
        count += len(plain)
        for case in plain | ours:
            # A call that ends the process without the agent has no answer.
            if plain.get(case) not in ("ended", ours.get(case)):
                failures.append(f"{row}: {case}: {plain.get(case)} without, {ours.get(case)} with")
    if options.results:
        Path(options.results).write_text("".join(lines))
    print(*failures, f"{count} cases, {len(failures)} differ", sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
