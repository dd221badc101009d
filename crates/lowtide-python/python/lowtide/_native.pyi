"""The native part: the walk over the heap, and releases. Written by `tests/native_stub.py`; not by hand.

Data that crosses the border has a class here. What Python has to provide is a class of the package.
"""

from collections.abc import Callable, Iterable, Sequence
from types import FrameType, ModuleType
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, final

from ._devices.device import Device
from ._release.plan import PlanStep
from ._release.teardown import Step
from ._rungs.hook import Hook
from ._why.question import Question

_T = TypeVar("_T")
_DropStep: TypeAlias = PlanStep | Step
_RootKind: TypeAlias = Literal["modules", "frame", "exception", "interpreter", "native"]

__version__: str

@final
class AgentStatus:
    is_asleep: Final[bool]
    is_suspended: Final[bool]
    idle_s: Final[float | None]
    quiet_s: Final[float | None]
    gives_way: Final[str | None]
    touches: Final[int]
    bytes: Final[int]
    on_device_bytes: Final[int]
    staying: Final[list[tuple[str, int]]]
    obstacles: Final[list[str]]
    ledgers: Final[list[Ledger]]
    def to_dict(self) -> dict[str, Any]: ...

@final
class AllocatorCounts:
    def __new__(cls, allocated_bytes: int, reserved_bytes: int) -> AllocatorCounts: ...
    allocated_bytes: Final[int]
    reserved_bytes: Final[int]

@final
class Alone:
    def __enter__(self) -> None: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Claim:
    basis: Final[str]
    bytes: Final[int]

@final
class CutEdge:
    held: Final[object]
    paths: Final[list[HeapPath]]

@final
class DeadCycle:
    head: Final[object]
    size: Final[RetainedSize]
    frozen: Final[bool]
    kept_bytes: Final[int]

@final
class DroppedReference:
    chain: Final[list[object]]
    held: Final[object]
    bytes: Final[int]

@final
class Examination:
    held: Final[list[HeldObject]]
    rest: Final[RetainedSize]
    dead: Final[list[DeadCycle]]
    collected_bytes: Final[int]
    unfrozen_bytes: Final[int]
    native: Final[list[NativeObject]]
    native_memory: Final[RetainedSize]
    memory: Final[RetainedSize]
    sizes: Final[list[int]]
    objects: Final[int]
    frozen_objects: Final[int]
    frozen_listed: Final[bool]

@final
class Examining:
    def __new__(cls, limit_s: float) -> Examining: ...
    def alone(self) -> Alone: ...
    count: Final[int]
    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...
    def after_fork_in_child(self) -> None: ...

@final
class Gate:
    def enter(self, within: Pass | None = None) -> Pass: ...
    def state(self) -> GateState: ...

@final
class GateState:
    open: Final[bool]
    active: Final[int]
    parked: Final[int]
    waiting: Final[int]

@final
class HeapCut:
    edges: Final[list[CutEdge]]
    freed: Final[RetainedSize]
    beside: Final[RetainedSize]
    kept_bytes: Final[int]
    hidden: Final[int]
    collects: Final[bool]
    unfreezes: Final[bool]
    pieces: Final[list[int]]

@final
class HeapPath:
    root: Final[_RootKind]
    thread: Final[int]
    objects: Final[list[object]]
    hidden: Final[int]
    frozen: Final[bool]

@final
class HeldObject:
    object: Final[Any]
    bytes: Final[int]
    pieces: Final[int]
    alike: Final[int]
    in_use: Final[bool]
    reached: Final[bool]
    collected: Final[bool | None]
    hidden: Final[int]
    frozen: Final[bool]
    paths: Final[list[HeapPath]]
    cuts: Final[list[HeapCut]]
    below: Final[list[HeapCut]]
    why_no_cut: Final[str | None]

@final
class Holder:
    def __new__(
        cls,
        path: str,
        holds: str,
        *,
        count: int = 1,
        bytes: int | None = None,
        cut: str | None = None,
        by_hand: str | None = None,
        number: int | None = None,
        together: list[int] | None = None,
    ) -> Holder: ...
    path: Final[str]
    holds: Final[str]
    count: Final[int]
    bytes: Final[int | None]
    cut: Final[str | None]
    by_hand: Final[str | None]
    number: Final[int | None]
    together: Final[list[int]]
    def remedy(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class HookPoint:
    TO_HOST: ClassVar[HookPoint]
    SESSIONS: ClassVar[HookPoint]
    CACHES: ClassVar[HookPoint]
    COLLECT: ClassVar[HookPoint]
    LIBRARIES: ClassVar[HookPoint]
    CONTEXT_RESET: ClassVar[HookPoint]
    FALLBACK: ClassVar[HookPoint]
    EXIT: ClassVar[HookPoint]
    SUSPEND: ClassVar[HookPoint]
    def __int__(self) -> int: ...

@final
class Idle:
    def __new__(
        cls,
        releaser: Releaser,
        switch: str,
        *,
        to: str | int | None = None,
        only_caches: bool = False,
    ) -> Idle: ...
    enabled: Final[bool]
    after_s: Final[float]
    at_end: Final[bool]
    def is_ready(self) -> bool: ...
    def work(self) -> Working: ...
    def notice(self) -> None: ...
    def tick(self) -> Tick: ...
    def watch(
        self, pause: Callable[[float], bool], on_release: Callable[[Receipt], object]
    ) -> None: ...

@final
class Ladder:
    CACHE: ClassVar[Ladder]
    CACHE_BY_NEED: ClassVar[Ladder]
    TRIM: ClassVar[Ladder]
    STAGE: ClassVar[Ladder]
    STAGE_WITH_LIBRARIES: ClassVar[Ladder]
    SHUTDOWN: ClassVar[Ladder]
    GRADUAL: ClassVar[Ladder]
    def __int__(self) -> int: ...

@final
class Ledger:
    device: Final[str]
    driver_bytes: Final[int]
    lines: Final[list[LedgerLine]]
    unknown_bytes: Final[int]
    def of(self, kind: LedgerKind) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class LedgerKind:
    LIVE: ClassVar[LedgerKind]
    CACHED: ClassVar[LedgerKind]
    GRAPHS: ClassVar[LedgerKind]
    LIBRARIES: ClassVar[LedgerKind]
    CONTEXT: ClassVar[LedgerKind]
    CONTEXT_AND_LIBRARIES: ClassVar[LedgerKind]
    OTHERS: ClassVar[LedgerKind]
    def __int__(self) -> int: ...

@final
class LedgerLine:
    def __new__(cls, kind: LedgerKind, name: str, bytes: int) -> LedgerLine: ...
    kind: Final[LedgerKind]
    name: Final[str]
    bytes: Final[int]

@final
class Memory:
    def __new__(
        cls,
        key: int,
        bytes: int,
        device: str,
        native: int | None,
        kind: MemoryKind,
        through: int | None = None,
    ) -> Memory: ...
    key: Final[int]
    bytes: Final[int]
    device: Final[str]
    native: Final[int | None]
    kind: Final[MemoryKind]
    through: Final[int]

@final
class MemoryKind:
    TENSOR: ClassVar[MemoryKind]
    STORAGE: ClassVar[MemoryKind]
    SHOWN: ClassVar[MemoryKind]
    GRAPH: ClassVar[MemoryKind]
    POOL: ClassVar[MemoryKind]
    ARRAY: ClassVar[MemoryKind]
    def __int__(self) -> int: ...

@final
class NativeObject:
    object: Final[Any]
    references: Final[int]
    bytes: Final[int]

@final
class NodeHooks:
    def __new__(cls, class_: type, lists: list[int]) -> NodeHooks: ...
    def of(self, node: object) -> list[Any]: ...

@final
class NvmlUsage:
    def __new__(
        cls, usage: Usage, own_bytes: int | None, others: list[ProcessUsage]
    ) -> NvmlUsage: ...
    usage: Final[Usage]
    own_bytes: Final[int | None]
    others: Final[list[ProcessUsage]]

@final
class ObjectKind:
    MODULES: ClassVar[ObjectKind]
    MODULE: ClassVar[ObjectKind]
    NAMESPACE: ClassVar[ObjectKind]
    CLASS_DICT: ClassVar[ObjectKind]
    DICT: ClassVar[ObjectKind]
    CONTAINER: ClassVar[ObjectKind]
    IMMUTABLE: ClassVar[ObjectKind]
    DEFAULTS: ClassVar[ObjectKind]
    CALL: ClassVar[ObjectKind]
    ARGUMENTS: ClassVar[ObjectKind]
    INSTANCE: ClassVar[ObjectKind]
    MODEL: ClassVar[ObjectKind]
    CLASS: ClassVar[ObjectKind]
    FUNCTION: ClassVar[ObjectKind]
    CELL: ClassVar[ObjectKind]
    FRAME: ClassVar[ObjectKind]
    GENERATOR: ClassVar[ObjectKind]
    EXCEPTION: ClassVar[ObjectKind]
    CACHE: ClassVar[ObjectKind]
    FOREIGN: ClassVar[ObjectKind]
    TENSOR: ClassVar[ObjectKind]
    MEMORY: ClassVar[ObjectKind]
    OURS: ClassVar[ObjectKind]
    OPAQUE: ClassVar[ObjectKind]
    def __int__(self) -> int: ...

@final
class Opened:
    def taken_bytes(self, releaser: Releaser) -> int: ...

@final
class Pass:
    def checkpoint(self) -> str: ...
    def leave(self) -> None: ...
    def __enter__(self) -> Pass: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Pauses:
    def __new__(cls, releaser: Releaser, flush: Callable[[], object] | None = None) -> Pauses: ...
    def pause(self, mode: str, limit_s: float) -> Receipt | None: ...
    def resume(self, empty_cache: bool = True, collect: bool = True) -> Resumed | None: ...
    def trend(self) -> Trend: ...

@final
class ProcessMemory:
    total_bytes: Final[int]
    free_bytes: Final[int]
    own_bytes: Final[int]

@final
class ProcessTree:
    def __new__(cls, pid: int) -> ProcessTree: ...
    def kill(self, within_s: float) -> list[int]: ...

@final
class ProcessUsage:
    def __new__(cls, name: str, bytes: int) -> ProcessUsage: ...
    name: Final[str]
    bytes: Final[int]

@final
class Reading:
    driver_bytes: Final[int | None]
    driver_free_bytes: Final[int | None]
    own_bytes: Final[int | None]
    in_use_bytes: Final[int | None]
    allocated_bytes: Final[int]
    reserved_bytes: Final[int]

@final
class Receipt:
    name: Final[str]
    device: Final[str | None]
    target: Final[str | None]
    verdict: Final[str]
    claim: Final[Claim | None]
    not_run: Final[list[str]]
    proved: Final[bool]
    freed_bytes: Final[int | None]
    before: Final[Reading]
    after: Final[Reading]
    rungs: Final[list[RungReceipt]]
    holders: Final[list[Holder]]
    advice: Final[list[str]]
    stopped_at: Final[str | None]
    took_s: Final[float]
    ledger: Final[Ledger | None]
    log_level: Final[int]
    def rung(self, name: str) -> RungReceipt | None: ...
    def with_advice(self, line: str) -> Receipt: ...
    def line(self) -> str: ...
    def reserved_line(self) -> str: ...
    def summary(self) -> str: ...
    def log_text(self, line: str | None = None) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    def detailed(self) -> str: ...

@final
class Releaser:
    def __new__(
        cls, device: Device | None, hooks: Iterable[Hook], absence: Callable[[], str] | None = None
    ) -> Releaser: ...
    def release(
        self,
        name: str,
        ladder: Ladder,
        *,
        to: str | int | None = None,
        claim_bytes: int | None = None,
        steps: list[_DropStep] | None = None,
        witness: Callable[[], list[Holder]] | None = None,
        pins: bool = True,
        wait_s: float = 60.0,
        planned_s: float = 0.0,
        beside_work: bool = False,
        libraries: Iterable[Hook] | None = None,
    ) -> Receipt: ...
    def restore(self) -> Restored | None: ...
    def read(self) -> Reading: ...
    def ledger(self) -> Ledger | None: ...
    def gate(self) -> Gate: ...
    def set_disposable(self, disposable: bool) -> None: ...

@final
class Restored:
    touched: Final[list[Touch]]
    before: Final[Reading]
    after: Final[Reading]
    proved: Final[bool]
    took_s: Final[float]

@final
class Resumed:
    receipt: Final[Receipt | None]
    warning: Final[TrendWarning | None]

@final
class RetainedSize:
    def __new__(cls, objects: int, bytes: int) -> RetainedSize: ...
    objects: Final[int]
    bytes: Final[int]

@final
class RungReceipt:
    rung: Final[str]
    attempt: Final[int]
    outcome: Final[str]
    why: Final[str | None]
    touched: Final[list[Touch]]
    skipped: Final[list[str]]
    expected_bytes: Final[int | None]
    freed_bytes: Final[int | None]
    before: Final[Reading]
    after: Final[Reading]
    took_s: Final[float]

@final
class Shown:
    address: Final[int]
    bytes: Final[int]
    device_type: Final[int]
    device_id: Final[int]

@final
class ShutdownPlan:
    drops: Final[list[DroppedReference]]
    freed_bytes: Final[int]
    tensors: Final[list[object]]
    stays: Final[list[object]]
    path: Final[HeapPath | None]
    is_alone: Final[bool]

@final
class StageReport:
    name: Final[str]
    own_peak_bytes: Final[int]
    peak_bytes: Final[int]
    teardown_s: Final[float]
    receipt: Final[Receipt]

@final
class Stages:
    def __new__(cls, releaser: Releaser, budget: str | int | None = None) -> Stages: ...
    def open(self, name: str, needs: str | int | None = None) -> Opened: ...
    def look(self, opened: Opened) -> None: ...
    def close(
        self,
        opened: Opened,
        name: str,
        *,
        to: str | int | None = None,
        claim_bytes: int | None = None,
        steps: list[_DropStep] | None = None,
        witness: Callable[[], list[Holder]] | None = None,
        wait_s: float = 60.0,
        planned_s: float = 0.0,
        libraries: Iterable[Hook] | None = None,
    ) -> Receipt: ...
    def between(self, name: str, every_s: float = 0.0) -> Receipt | None: ...
    def trend(self) -> Trend: ...
    def report(self) -> StagesReport: ...

@final
class StagesReport:
    stages: Final[list[StageReport]]
    peak_bytes: Final[int]
    largest_bytes: Final[int]
    sum_bytes: Final[int]
    cleaning_s: Final[float]
    cleaning_share: Final[float]
    def to_dict(self) -> dict[str, Any]: ...

@final
class TagScope:
    def __new__(cls, name: str, policy: str, device: int) -> TagScope: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...

@final
class TagStatus:
    name: Final[str]
    device: Final[str]
    policy: Final[str]
    is_asleep: Final[bool]
    bytes: Final[int]
    on_device_bytes: Final[int]
    backup_bytes: Final[int]
    open_scopes: Final[int]

@final
class Tick:
    receipt: Final[Receipt | None]
    why_not: Final[str | None]

@final
class Touch:
    def __new__(cls, what: str, bytes: int | None = None) -> Touch: ...
    what: Final[str]
    bytes: Final[int | None]

@final
class Trend:
    per_update_bytes: Final[int]
    samples: Final[int]
    rising: Final[bool]

@final
class TrendWarning:
    per_update_bytes: Final[int]

@final
class TypeKind:
    def __new__(cls, class_: type, kind: ObjectKind, *, subclasses: bool = False) -> TypeKind: ...

@final
class Usage:
    def __new__(cls, total_bytes: int, free_bytes: int) -> Usage: ...
    total_bytes: Final[int]
    free_bytes: Final[int]

@final
class Working:
    restored: Final[Restored | None]
    def checkpoint(self) -> str: ...
    def end(self) -> Tick | None: ...
    def leave(self) -> None: ...
    def __enter__(self) -> Working: ...
    def __exit__(self, *_exception: object) -> None: ...

class AgentError(RuntimeError): ...
class Busy(RuntimeError): ...
class TagError(RuntimeError): ...
class WouldNotFit(MemoryError): ...

def agent_is_asleep() -> bool: ...
def agent_is_suspended() -> bool: ...
def agent_sleep() -> list[Receipt]: ...
def agent_status() -> AgentStatus: ...
def agent_suspend() -> dict[str, Any] | None: ...
def agent_wake() -> int: ...
def dlpack_memory(capsule: object) -> Shown | None: ...
def empty_receipt(name: str) -> Receipt: ...
def examine(question: Question) -> Examination: ...
def exit_calls(
    known: object, count: int
) -> tuple[list[tuple[object, object, object]], object] | None: ...
def frame_locals(frame: FrameType) -> object: ...
def frame_variables(frame: FrameType) -> dict[str, object] | None: ...
def frozen_mortals(count: int, member: object) -> int: ...
def hook_lists(known: list[tuple[object, object]]) -> list[int]: ...
def kept_by(object: object, threads: list[int], code: int) -> int | str | None: ...
def led_to(
    roots: list[object], wanted: list[type], not_through: list[type], most: int
) -> list[object]: ...
def listed_memory(question: Question) -> int | None: ...
def malloc_counts() -> AllocatorCounts: ...
def malloc_trim() -> bool: ...
def malloc_trimmable() -> int: ...
def memory_of_process(pid: int) -> int | None: ...
def module_state(module: ModuleType) -> list[int]: ...
def nvml_memory(uuid: str) -> Usage: ...
def nvml_usage(uuid: str) -> NvmlUsage: ...
def objects_of_type(interpreter: type, class_: type[_T], tried: list[object]) -> list[_T]: ...
def parse_bytes(value: str | int) -> int: ...
def parse_seconds(value: str | float) -> float: ...
def plan_shutdown(
    question: Question,
    owners: list[list[object]],
    only: list[set[int] | None],
    configurations: list[int],
    namespaces: list[type],
    is_quick: bool,
) -> ShutdownPlan: ...
def position(holder: object, held: object, start: int) -> int | None: ...
def printable(text: str) -> str: ...
def process_memory() -> ProcessMemory: ...
def referents(holder: object) -> list[object]: ...
def refers(holder: object, held: object) -> bool: ...
def report_page(data: str) -> str: ...
def tag_at(address: int) -> tuple[str, bool] | None: ...
def tag_refusal() -> str | None: ...
def tags() -> list[TagStatus]: ...
def tags_ahead(share: int) -> int: ...
def tags_ahead_end(number: int | None = None) -> None: ...
def tags_ahead_state(number: int) -> dict[str, str] | None: ...
def tags_sleep(names: Sequence[str], *, discard: bool = False) -> list[Receipt]: ...
def tags_wake(names: Sequence[str]) -> int: ...
def thread_state() -> dict[Any, Any] | None: ...
