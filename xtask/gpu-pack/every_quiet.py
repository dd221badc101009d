"""Calls every quiet and waiting function of the driver, with arguments made from the types in cuda.h.

    python3 every_quiet.py asleep --lowtide ./lowtide --agent ./liblowtide_agent.so --results asleep.json
    python3 every_quiet.py locked --results locked.json
    python3 every_quiet.py checkpointed --waiting locked.json --results checkpointed.json

`asleep`: each function is asked while the program is awake and once while it sleeps; the answer must be the same, and the program must sleep on. `locked`: each function is asked in a process that another one has locked;
the result says which wait; `checkpointed`: the same in a process that is checkpointed. Functions that take something
away get an object of their own each time. A call that ends the process is named and left out of the next run.
Exits 0 only if every answer is the same (`asleep`), or if every call returned after the unlock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import from_header
from command_line import Told, ask, end, parser_of
from driver import MIB, Word, call, holds, make, pinned_on, registered_page

LIMIT_S = 280
NOBODY = 0x7FFF_FFFF
PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .entry nothing(.param .u64 at) { ret; }
\0"""
# An attribute of memory, and all that are asked asleep; the agent wakes for those that it does not know.
MEMORY_TYPE = 2
ATTRIBUTES = [1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17]
# Say how much of the device is free, which is more while the program sleeps; or take from a stack.
CHANGING = {"cuMemGetInfo", "cuMemGetInfo_v2", "cuCtxPopCurrent", "cuCtxPopCurrent_v2"}
# Would end what the other questions are about, or need arguments that types do not tell: structures of resources,
# code to link.
LEFT_OUT = {
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevResourceGenerateDesc",
    "cuDevSmResourceSplit",
    "cuDevSmResourceSplitByCount",
    "cuLinkAddData",
    "cuLinkAddData_v2",
    "cuLinkAddFile",
    "cuLinkAddFile_v2",
    "cuLinkComplete",
}
# Keeps the process from sleeping, which `status` says.
KEEPS_AWAKE = {"cuCtxDetach"}
TAKES_AWAY = re.compile(r"Destroy|Free|Release|Unload|Detach|Unregister|Close")
Answer = tuple[int, bytes]


class World:
    """One object of each kind."""

    def __init__(self) -> None:
        assert call("cuInit", 0) == 0
        self.context = make("cuDevicePrimaryCtxRetain", 0)
        call("cuCtxSetCurrent", self.context)
        self.block = make("cuMemAlloc_v2", 8 * MIB)
        call("cuMemcpyHtoD_v2", self.block, b"\x5a" * (8 * MIB), 8 * MIB)
        self.shape = (Word * 4)(64, 64, 0x20 | (1 << 32), 0)  # 64 x 64 floats of one channel
        # Width, height, depth, format and channels, flags: two levels.
        self.levels = (Word * 5)(64, 64, 0, 0x20 | (1 << 32), 0)
        self.kept: list[object] = []
        self.makers: dict[str, Callable[[], int]] = {
            "CUstream": lambda: make("cuStreamCreate", 1),
            "CUevent": self.event,
            "CUgraph": lambda: make("cuGraphCreate", 0),
            "CUmodule": lambda: make("cuModuleLoadData", PTX),
            "CUlibrary": lambda: make("cuLibraryLoadData", PTX, None, None, 0, None, None, 0),
            "CUarray": lambda: make("cuArrayCreate_v2", self.shape),
            "CUmipmappedArray": lambda: make("cuMipmappedArrayCreate", self.levels, 2),
            "CUtexref": lambda: make("cuTexRefCreate"),
            "CUtexObject": self.texture,
            "CUsurfObject": lambda: make("cuSurfObjectCreate", self.of_an_array()),
            "CUlinkState": self.link,
            "CUmemoryPool": self.pool,
            "CUgraphNode": lambda: make("cuGraphAddEmptyNode", self.one["CUgraph"], None, 0),
            "CUgraphExec": lambda: make("cuGraphInstantiateWithFlags", self.one["CUgraph"], 0),
            "CUdeviceptr": lambda: make("cuMemAlloc_v2", 2 * MIB),
            "CUmemGenericAllocationHandle": self.memory,
        }
        self.one: dict[str, int] = {}
        for kind, maker in self.makers.items():
            self.one[kind] = maker()
        self.one["CUcontext"], self.one["CUdeviceptr"] = self.context, self.block
        self.one["CUfunction"] = make("cuModuleGetFunction", self.one["CUmodule"], b"nothing\0")
        self.one["CUkernel"] = make("cuLibraryGetKernel", self.one["CUlibrary"], b"nothing\0")
        graph, event = self.one["CUgraph"], self.one["CUevent"]
        self.nodes = {
            "EventRecord": make("cuGraphAddEventRecordNode", graph, None, 0, event),
            "EventWait": make("cuGraphAddEventWaitNode", graph, None, 0, event),
            "ChildGraph": make(
                "cuGraphAddChildGraphNode", graph, None, 0, self.makers["CUgraph"]()
            ),
        }
        self.one["CUgraphExec"] = make("cuGraphInstantiateWithFlags", graph, 0)
        self.pinned = make("cuMemHostAlloc", 4096, 0)
        call("cuCtxSynchronize")

    def event(self) -> int:
        event = make("cuEventCreate", 0)
        call("cuEventRecord", event, 0)
        return event

    def of_an_array(self) -> object:
        resource = (Word * 18)()
        resource[1] = self.one["CUarray"]
        self.kept.append(resource)
        return resource

    def texture(self) -> int:
        description = (Word * 16)()
        self.kept.append(description)
        return make("cuTexObjectCreate", self.of_an_array(), description, None)

    def link(self) -> int:
        state = Word()
        call("cuLinkCreate_v2", 0, None, None, ctypes.byref(state))
        return state.value

    def properties(self) -> object:
        self.kept.append(pinned_on(0))
        return self.kept[-1]

    def pool(self) -> int:
        return make("cuMemPoolCreate", self.properties())

    def memory(self) -> int:
        return make("cuMemCreate", 2 * MIB, self.properties(), 0)

    def host(self, name: str) -> int:
        if name == "cuMemHostUnregister":
            return registered_page()
        return make("cuMemHostAlloc", 4096, 0) if name == "cuMemFreeHost" else self.pinned

    def value(self, name: str, kind: str, parameter: str) -> int:
        """Returns the value of an argument that is not a pointer to something of ours."""
        if kind == "CUgraphNode" and not TAKES_AWAY.search(name):
            found = [node for part, node in self.nodes.items() if part in name]
            return found[0] if found else self.one[kind]
        if kind == "CUcontext" and TAKES_AWAY.search(name):
            other = make("cuCtxCreate_v2", 0, 0)
            self.restore()
            return other
        if name.startswith("cuDevicePrimaryCtxRelease"):
            make("cuDevicePrimaryCtxRetain", 0)
        if parameter.startswith("pid"):
            return NOBODY
        if parameter == "len":
            return 64
        if parameter == "childGraph":
            return self.makers[kind]()
        if name == "cuPointerGetAttribute" and parameter == "attribute":
            return MEMORY_TYPE
        if kind in self.makers and TAKES_AWAY.search(name):
            return self.makers[kind]()
        return self.one.get(kind, 0)

    def ask(self, name: str, parameters: list[str]) -> Callable[[], Answer]:
        """Makes the arguments of a call; returns the call."""
        places: list[ctypes.Array[ctypes.c_char]] = []
        arguments: list[object] = []
        for parameter in parameters:
            kind = parameter.replace("const ", "").split()[0].rstrip("*")
            if re.match(r"const char\s*\*\s*(path|name|symbol|pciBusId)", parameter):
                arguments.append(b"/dev/null\0" if "path" in parameter else b"nothing\0")
            elif re.match(r"void \*p$", parameter):
                arguments.append(self.host(name))
            elif "*" in parameter:
                places.append(ctypes.create_string_buffer(4096))
                arguments.append(places[-1])
            elif kind == "float":
                arguments.append(ctypes.c_float(0))
            else:
                arguments.append(self.value(name, kind, parameter.split()[-1]))
        for place in places if name == "cuMemGetAllocationGranularity" else []:
            ctypes.memmove(place, self.properties(), 64)
        self.kept.append((places, arguments))
        return lambda: (call(name, *arguments), b"".join(place.raw for place in places))

    def ask_attribute(self, attribute: int, at: int) -> Callable[[], Answer]:
        """Asks for an attribute of memory; returns the call."""
        place = ctypes.create_string_buffer(256)
        return lambda: (call("cuPointerGetAttribute", place, attribute, at), place.raw)

    def restore(self) -> None:
        call("cuCtxSetCurrent", self.context)


def signatures(left_out: set[str]) -> dict[str, list[str]]:
    """Returns the parameters of each quiet or waiting function of the table that is not left out."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    for package in map(Path, sys.path):
        folders += [*package.glob("nvidia/*/include"), *package.glob("triton/backends/*/include")]
    folder = next(str(path) for path in folders if (path / "cuda.h").exists())
    table = (Path(__file__).parent / "driver.tsv").read_text().splitlines()
    rows = [row.split("\t") for row in table if not row.startswith("#")]
    asked = [row[0] for row in rows if row[2].split()[0] in ("quiet", "wait")]
    parameters: dict[str, list[str]] = {}
    for mode in from_header.MODES:
        command = ["gcc", "-E", "-P", "-x", "c", *mode, f"-I{folder}", "-"]
        source = '#include "cuda.h"\n#if __has_include("cudaProfiler.h")\n'
        source += '#include "cudaProfiler.h"\n#endif\n'
        text = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
        for match in re.finditer(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text.stdout):
            parameters[match.group(1)] = from_header.arguments(text.stdout, match.end())
    return {name: parameters[name] for name in asked if name in parameters and name not in left_out}


class Progress:
    """What is being called, in a file: a call that ends the process is found there."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def begin(self, name: str) -> None:
        self.path.write_text(name)


def asleep(options: argparse.Namespace, progress: Progress, left_out: set[str]) -> dict[str, object]:
    world = World()
    asked = signatures(left_out).items()
    questions = {name: partial(world.ask, name, parameters) for name, parameters in asked}
    for size, at in (("large", world.block + 64), ("small", make("cuMemAlloc_v2", 4096))):
        for attribute in ATTRIBUTES:
            name = f"cuPointerGetAttribute {attribute}, {size}"
            questions[name] = partial(world.ask_attribute, attribute, at)
    # The first round settles what calls leave behind for others: the current context, the pool, the log.
    rounds: list[dict[str, Answer]] = []
    for _ in range(3):
        answers: dict[str, Answer] = {}
        for name, question in questions.items():
            progress.begin(name)
            answers[name] = question()()
            world.restore()
        rounds.append(answers)
    last = {name: question() for name, question in questions.items()}
    failures: list[str] = []
    slept = ask(options.lowtide, "sleep", os.getpid())
    if not slept.get("receipts"):
        failures.append(f"it did not sleep: {slept}")
    for name, prepared in last.items():
        progress.begin(name)
        code, written = prepared()
        world.restore()
        (_, again), (before, text) = rounds[1][name], rounds[2][name]
        if not ask(options.lowtide, "status", os.getpid()).get("is_asleep"):
            failures.append(f"{name} woke the process")
            ask(options.lowtide, "sleep", os.getpid())
        if code != before:
            failures.append(f"{name}: {before} awake, {code} asleep")
        # Handles and times differ from call to call; then only the code can be compared.
        elif text == again and written != text and name not in CHANGING:
            failures.append(f"{name}: writes something else asleep")
    if not holds(world.block, b"\x5a" * (8 * MIB)):
        failures.append("the data are not what they were")
    codes = {name: code for name, (code, _) in rounds[2].items()}
    return {"asked": len(questions), "codes": codes, "failures": failures}


class Locker(Told):
    """Another process, which locks this one."""

    SOURCE = """import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
pid, nothing = int(sys.argv[1]), (ctypes.c_uint32 * 16)()
for word in sys.stdin:
    print(getattr(cuda, "cuCheckpointProcess" + word.strip())(pid, nothing), flush=True)
"""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        super().__init__([sys.executable, "-c", self.SOURCE, str(os.getpid())], environment)

    def __call__(self, *words: str) -> None:
        for word in words:
            code = self.tell(word)
            assert code == "0", f"{word}: {code}"


def returns(world: World, question: Callable[[], Answer], within_s: float) -> threading.Thread:
    """Makes the call on a thread of its own; waits for it so long."""

    def run() -> None:
        world.restore()
        question()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(within_s)
    return thread


def locked(_options: argparse.Namespace, progress: Progress, left_out: set[str]) -> dict[str, object]:
    world, locker = World(), Locker()
    waiting, going_on, failures = [], [], []
    for name, parameters in signatures(left_out).items():
        progress.begin(name)
        question = world.ask(name, parameters)
        locker("Lock")
        thread = returns(world, question, 0.15)
        (waiting if thread.is_alive() else going_on).append(name)
        locker("Unlock")
        thread.join(20)
        if thread.is_alive():
            failures.append(f"{name} did not return after the unlock")
    return {"waits": waiting, "goes on": going_on, "failures": failures}


def checkpointed(_options: argparse.Namespace, progress: Progress, left_out: set[str]) -> dict[str, object]:
    world, locker = World(), Locker()
    questions = {name: world.ask(name, one) for name, one in signatures(left_out).items()}
    locker("Lock", "Checkpoint")
    waiting: dict[str, threading.Thread] = {}
    for name, question in questions.items():
        progress.begin(name)
        thread = returns(world, question, 0.15)
        if thread.is_alive():
            waiting[name] = thread
    progress.begin("nothing")
    locker("Restore", "Unlock")
    failures: list[str] = []
    for name, thread in waiting.items():
        thread.join(20)
        if thread.is_alive():
            failures.append(f"{name} did not return after the restore")
    going_on = [name for name in questions if name not in waiting]
    return {"waits": list(waiting), "goes on": going_on, "failures": failures}


MODES = {"asleep": asleep, "locked": locked, "checkpointed": checkpointed}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--agent", help="the agent's library, for `asleep`")
    parser.add_argument("--results", required=True, help="where the answers go, as JSON")
    parser.add_argument("--waiting", help="a result whose waiting functions are not asked")
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    parser.add_argument("--left-out", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.progress:
        left_out = set(options.left_out.split(",")) | LEFT_OUT
        if options.mode == "asleep":
            left_out |= KEEPS_AWAKE
        if options.waiting:
            left_out |= set(json.loads(Path(options.waiting).read_text())["waits"])
        answer = MODES[options.mode](options, Progress(options.progress), left_out)
        Path(options.results).write_text(json.dumps(answer, indent=1))
        os._exit(bool(answer["failures"]))
    environment = dict(os.environ)
    if options.agent:
        environment["LD_PRELOAD"] = options.agent
    ended: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        progress = os.path.join(folder, "progress")
        for _ in range(60):
            command = [sys.executable, *sys.argv, "--progress", progress]
            command += ["--left-out", ",".join(ended)]
            done = subprocess.run(command, env=environment, timeout=LIMIT_S, check=False)
            if done.returncode >= 0:
                break
            ended.append(Path(progress).read_text())
            print(f"{ended[-1]} ended the process with signal {-done.returncode}")
    answer = json.loads(Path(options.results).read_text())
    answer["ends the process"] = ended
    answer["left out"] = sorted(LEFT_OUT)
    for key, value in answer.items():
        print(key, len(value) if isinstance(value, (list, dict)) else value)
    end(answer["failures"], options.results, answer)


main()
