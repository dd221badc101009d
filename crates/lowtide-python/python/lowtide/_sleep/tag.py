"""Tags: device memory that sleeps and wakes in this process, under the same addresses.

    with lowtide.tag("weights"):
        model = load()                   # torch allocates it from a pool of lowtide
    lowtide.sleep("weights")             # the memory leaves the device, with a receipt
    lowtide.wake("weights")              # the same bytes are at the same addresses again

torch keeps allocating in its own way inside the scope; only the memory that it would take from the driver
comes from lowtide (`torch.cuda.MemPool` with a pluggable allocator). Tensors keep it alive, not the scope.

With expandable segments torch maps memory itself, and asks no pluggable allocator. They are off while a scope is
open, and on again afterwards if they were.
"""

from __future__ import annotations

import ctypes
import os
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import _native
from .._native import TagError, TagScope

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._native import Receipt, TagStatus
    from .._runtime.torch import Torch

FLAG = "expandable_segments"
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
POLICIES = ("offload", "discard", "keep")
_FUNCTIONS = ("lowtide_tag_malloc", "lowtide_tag_free")
_lock = threading.Lock()
_allocators: list[Any] = []
# Pools whose scope ended during a capture. Dropping one waits for the device, which would end the capture.
_kept: list[Any] = []


class _OfThread(threading.local):
    """The scopes that this thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []


_of_thread = _OfThread()


def tag(name: str, *, policy: str = "offload", device: object = None) -> Tag:
    """Returns a scope: what this thread allocates with torch inside it can sleep and wake by this name.

    `policy` says what `lowtide.sleep` does with the content: "offload" saves it to the host, "discard"
    loses it, "keep" leaves it on the device. `device` is the current one unless given. Allocations of other
    threads, autograd's among them, go where they went before.

    Raises TypeError for a name or policy that is no text, ValueError for an empty name or an unknown policy.
    Entering raises TagError if the tag is asleep or has another policy, or if there is no GPU.
    """
    return Tag(name, policy, device)


def discard(*names: str) -> list[Receipt]:
    """Puts tags to sleep and loses their content; what sleeps already loses its backup.

    A wake brings memory with undefined content to the same addresses, for a program that fills it again.
    Returns a receipt for each device. Raises TagError for an unknown name, and if a scope of a tag is open.
    """
    if not names:
        raise TypeError("name the tags whose content is to be lost")
    return _native.tags_sleep(list(names), discard=True)


def tags() -> list[TagStatus]:
    """Returns the tags of this process on every device: what each has, and whether it is asleep."""
    return _native.tags()


class Tag:
    """A scope in which torch's allocations have a tag. It may be entered again after it was left."""

    def __init__(self, name: str, policy: str, device: object) -> None:
        for what, word in (("name", name), ("policy", policy)):
            if not isinstance(word, str):
                raise TypeError(f"{what} must be a text, not {type(word).__name__}")
        if not name.strip():
            raise ValueError("name must not be empty")
        if policy not in POLICIES:
            raise ValueError(f"{policy!r} is no policy; there are {', '.join(POLICIES)}")
        self.name = name
        self.policy = policy
        self.device = device
        self._entered: _Entered | None = None

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError(f"this scope of tag {self.name!r} is open already")
        torch = import_module("torch")
        if not hasattr(torch.cuda, "MemPool"):
            raise RuntimeError(f"torch {torch.__version__} has no torch.cuda.MemPool; 2.6 has")
        index = self._index(torch)
        scope = TagScope(self.name, self.policy, index)
        scope.begin()
        try:
            self._entered = _Entered(torch, scope, index)
        except BaseException:
            scope.end()
            raise
        return self

    def _index(self, torch: Any) -> int:
        """Returns the number of the GPU."""
        try:
            current: int = torch.cuda.current_device()
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise TagError(
                f"a tag needs a GPU that torch can use, and there is none ({why}); "
                "`lowtide doctor` says what is missing"
            ) from error
        if self.device is None:
            return current
        chosen: int = torch.cuda._utils._get_device_index(self.device, optional=True)
        return chosen

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            _explain(error)
            entered.leave()

    def __repr__(self) -> str:
        state = "open" if self._entered is not None else "not open"
        return f"<lowtide.Tag {self.name}, {self.policy}, {state}>"


class _Entered:
    """A scope while it is open: a memory pool of torch, to which this thread's allocations go."""

    def __init__(self, torch: Torch, scope: TagScope, index: int) -> None:
        self.torch, self.scope, self.index = torch, scope, index
        self.thread, self.stack = threading.get_ident(), _of_thread.entered
        self.route: Any = None
        _native.tag_refusal()  # Of an earlier scope.
        _expandable.avoid(torch)
        try:
            # A new one for each scope: its free segments go back to the device as the scope ends, and
            # none is handed out while the tag sleeps.
            self.pool = torch.cuda.MemPool(_allocator(torch))
            outer = self._outer()
            if outer is not None:
                outer.stop()
            try:
                self.start()
            except BaseException:
                if outer is not None:
                    outer.start()
                raise
        except BaseException:
            _expandable.allow(torch)
            raise
        self.stack.append(self)

    def _outer(self) -> _Entered | None:
        """Returns the innermost other scope of this thread on this device."""
        found = (one for one in reversed(self.stack) if one.index == self.index and one is not self)
        return next(found, None)

    def start(self) -> None:
        """Sends this thread's allocations to the pool. In old versions of torch the first pool that was
        entered wins, so that an outer scope stops meanwhile."""
        route = self.torch.cuda.use_mem_pool(self.pool, self.index)
        route.__enter__()
        self.route = route

    def stop(self) -> None:
        """Sends them where they went before."""
        route, self.route = self.route, None
        if route is not None:
            route.__exit__(None, None, None)

    def leave(self) -> None:
        """Ends the scope. Tensors keep what they use; the rest of the pool goes back to the device."""
        is_here = threading.get_ident() == self.thread
        is_inner = self.route is not None
        try:
            self.stop()
        finally:
            if self in self.stack:
                self.stack.remove(self)
            self.scope.end()
            _expandable.allow(self.torch)
        pool, self.pool = self.pool, None
        if self.torch.cuda.is_current_stream_capturing():
            _kept.append(pool)
        else:
            _kept.clear()
        del pool
        outer = self._outer() if is_inner else None
        if outer is None:
            return
        if not is_here:
            raise RuntimeError(
                "a scope of lowtide.tag ended on another thread than it began on: the scope around it goes"
                " on without its memory"
            )
        outer.start()


def _allocator(torch: Torch) -> Any:
    """Returns lowtide's allocator as torch has it: one for the process."""
    with _lock:
        if not _allocators:
            plugged = torch.cuda.memory.CUDAPluggableAllocator(_native.__file__, *_FUNCTIONS)
            found = plugged.allocator()
            # Some versions of torch keep a bare pointer to it in each pool, so it must outlive all of
            # them, at the end of the interpreter too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
            _allocators.append(found)
        return _allocators[0]


def _explain(error: BaseException | None) -> None:
    """Adds to torch's out-of-memory error why the memory was refused."""
    if error is None or type(error).__name__ != "OutOfMemoryError":
        return
    refusal = _native.tag_refusal()
    if refusal is not None and hasattr(error, "add_note"):
        error.add_note(f"lowtide: {refusal}")


class ExpandableSegments:
    """Counts those who do without, so that the last one of them puts the setting back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._avoiding = 0
        self._before: str | None = None

    def avoid(self, torch: Torch) -> None:
        """Turns expandable segments off, if they are on."""
        with self._lock:
            if self._avoiding == 0:
                self._before = None
                settings = current(torch)
                if is_on(settings):
                    write(torch, without(settings))
                    self._before = settings
            self._avoiding += 1

    def allow(self, torch: Torch) -> None:
        """Turns them on again as the last one who avoided them, if they were on."""
        with self._lock:
            self._avoiding -= 1
            if self._avoiding == 0 and self._before is not None:
                write(torch, self._before)
                self._before = None


def current(torch: Torch) -> str:
    """Returns the settings of torch's allocator, as it was given them last."""
    try:
        live = torch.cuda.memory._snapshot()["allocator_settings"]
    except (AttributeError, KeyError, RuntimeError, TypeError):
        live = {}
    found = [live.get(name) for name in VARIABLES] + [os.environ.get(name) for name in VARIABLES]
    return next((one for one in found if isinstance(one, str) and one), "")


def is_on(settings: str) -> bool:
    """Returns whether settings turn expandable segments on."""
    return any(key == FLAG and value.lower() in ("true", "1") for key, value in fields(settings))


def without(settings: str) -> str:
    """Returns the settings with expandable segments off. torch forgets what is not in the text, so that
    everything else stays in it."""
    kept = [f"{key}:{value}" if value else key for key, value in fields(settings) if key != FLAG]
    return ",".join([*kept, f"{FLAG}:False"])


def fields(settings: str) -> list[tuple[str, str]]:
    """Splits settings at their commas. A list in brackets has commas of its own and no flag."""
    parts = [part.strip().partition(":") for part in settings.split(",") if part.strip()]
    return [(key.strip(), value.strip()) for key, _, value in parts]


def write(torch: Torch, settings: str) -> None:
    """Gives torch's allocator its settings."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (setter or torch.cuda.memory._set_allocator_settings)(settings)


_expandable = ExpandableSegments()
