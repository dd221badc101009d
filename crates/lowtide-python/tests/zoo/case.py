"""A case of the zoo: what is expected of its program, how its memory is watched, and what is done to it.

Whether memory is still there is never asked of lowtide. A storage tells by a weak reference of
torch's own (the C++ storage, so that views and graphs count), and the memory by the kernel's
resident pages of this process or, on a GPU, by the driver. Nothing here keeps memory alive: it holds
weak references and text, and what a person would type is text that runs in the program's `__main__`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import traceback
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

DEVICE = os.environ.get("ZOO_DEVICE", "cpu")
MIB = 1 << 20
LEAK_MIB = 32 if DEVICE == "cpu" else 128
"""How large a leak is. The kernel's number for a process moves by less than half of it by itself, a GPU's
by more."""
RESULT = "ZOO-RESULT "
"""The last line of a run is this and one JSON object."""


class Case(NamedTuple):
    """What must be said of a program, and what must free its leak. All texts run in its `__main__`."""

    names: tuple[str, ...]
    """Regexes, each found in the answer's text: the holder a person would recognise."""
    cut: str
    """A regex for what the answer says to do."""
    cure: str
    """Statements that free it by hand, without lowtide."""
    release: str = "lowtide.release()"
    """What a person types next."""
    verdict: str = "released"
    """A regex for the whole verdict of that receipt."""
    because: str = ""
    """Why another verdict than `released` is right."""
    then: str = ""
    """What frees it after such a verdict: `cut` (the answer's first), `cure`, or an expression."""
    by_hand: str = ""
    """Why no statement frees it, so that the answer has to say `by hand`; empty: one does."""
    frees: bool | None = None
    """Whether `release` frees what is watched; None: if its verdict is to be `released`."""
    says: tuple[str, ...] = ()
    """Regexes, each found in the receipt's text."""
    after: str = ""
    """An expression that has to be true at the end."""
    holder: str = ""
    """An expression for the holder, to judge other tools by; empty: no object stands for it."""
    dies_by_gc: bool = False
    """Whether `gc.collect()` alone frees it."""
    mib: int = LEAK_MIB
    """How much memory must come and go, at the least half of it."""
    storages: bool = True
    """Whether there are storages to watch; if not, only the driver can tell."""
    memory: bool = True
    """Whether the memory goes back at once; if not, only the storages tell."""
    asked: str = ""
    """The device to ask about, where it is not the one of `ZOO_DEVICE`."""
    gpu: str = ""
    """Why it needs a GPU; empty: it runs everywhere."""
    cpu: str = ""
    """Why it runs in host memory alone; empty: it runs everywhere."""
    python: tuple[int, int] = (3, 10)
    """The first Python that has what it uses."""


# On a GPU the first use of a model leaves a workspace of a library, which a release frees.
PINNED = "pinned" if DEVICE == "cpu" else "pinned|partial"
OWN = "the reference is the program's own: only its author knows that it is done with"
pinned = functools.partial(Case, verdict=PINNED, because=OWN, then="cut")
"""Makes the case of most programs: the memory is pinned, and the answer's first cut frees it."""

_watched: list[StorageWeakRef] = []
"""The storages that are watched."""


def big(mib: int = LEAK_MIB, **options: Any) -> Any:
    """A tensor of that size, written to, and watched."""
    return watch(torch.ones(mib * MIB // 4, device=DEVICE, **options))


def watch(tensor: Any) -> Any:
    """Watches the tensor's storage, and hands the tensor through."""
    _watched.append(StorageWeakRef(tensor.untyped_storage()))
    return tensor


def in_use() -> int | None:
    """Bytes in use: by the driver on a GPU, else this process's resident pages, by the kernel."""
    if DEVICE != "cpu":
        torch.cuda.synchronize()
        own = by_process()
        # The driver may not know processes by the numbers that they have here (in a container).
        if os.getpid() in own:
            return sum(own[pid] for pid in own if pid == os.getpid() or is_descendant(pid))
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    try:
        with open("/proc/self/statm") as statm:
            _, resident, shared, *_ = map(int, statm.read().split())
    except OSError:  # not Linux: only the storages tell
        return None
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def by_process() -> dict[int, int]:
    """The bytes that each process has on the device, as the driver says: others may use it, too."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60).stdout
    fields = [line.split(",") for line in told.splitlines()]
    return {int(pid): int(mib) * MIB for pid, mib in fields if mib.strip().isdigit()}


def is_descendant(pid: int) -> bool:
    """Whether this process, or a child of it, started that one."""
    try:
        while pid > 1:
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
            if pid == os.getpid():
                return True
    except OSError:  # it has ended
        pass
    return False


class Run:
    """One run of a case: what was in use at its beginning, and what was found."""

    def __init__(self, case: Case) -> None:
        main = sys.modules["__main__"]
        self.case = case
        self.name = main.__spec__.name.rpartition(".")[2] if main.__spec__ else "?"
        self.scope = vars(main)
        self.leaked = in_use()
        self.found: dict[str, Any] = {}
        self.problems: list[str] = []
        if case.storages:
            self.expect(self.is_alive(), "the leak is gone before anybody looked")

    def expect(self, is_so: bool, otherwise: str) -> bool:
        """Notes a problem where something is not so."""
        if not is_so:
            self.problems.append(otherwise)
        return is_so

    def is_alive(self) -> bool:
        """Whether any storage that is watched is still there."""
        return not all(storage.expired() for storage in _watched)

    def type_cure(self) -> None:
        """What a person would type by hand."""
        exec(self.case.cure, self.scope)

    def what_stays(self) -> str:
        """Empty if it is freed; else what tells that it is not."""
        now = in_use()
        if self.case.storages and self.is_alive():
            return "its storage is still there"
        if self.case.memory and self.leaked is not None and now is not None:
            fell = self.leaked - now
            if fell < self.case.mib * MIB // 2:
                where = "the process" if DEVICE == "cpu" else "the device"
                return f"memory in use by {where} fell by only {fell / MIB:.1f} MiB"
        return ""


def examine(case: Case) -> None:
    """Does to the program what the command line asks for, and ends; called where a person would ask."""
    from zoo import modes

    mode = sys.argv[1] if len(sys.argv) > 1 else "lowtide"
    os.environ.setdefault("LOWTIDE_DEVICE", case.asked or DEVICE)
    run = Run(case)
    try:
        modes.MODES[mode](run)
    except Exception as error:  # noqa: BLE001 (it becomes a problem of the result)
        # Its text alone: the traceback would be one more holder.
        run.problems.append("".join(traceback.format_exception(error)))
    for problem in run.problems:
        print(f"problem of {run.name}:", problem)
    result = {"program": run.name, "mode": mode, **run.found, "problems": run.problems}
    print(RESULT + json.dumps(result), flush=True)
    sys.stderr.flush()
    # Threads of some programs wait for ever, and the interpreter's end would wait for them.
    os._exit(0)


if len(sys.argv) > 1 and sys.argv[1] == "snapshot" and DEVICE != "cpu":
    # The history has to be on before anything is allocated.
    torch.cuda.memory._record_memory_history()
