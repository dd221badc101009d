"""How functions, caches and suspended code refer to what they hold.

Closures, defaults, caches and generators keep objects in places that have no attribute a person
would think of. The steps here say the place in words where no expression is short enough.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Generator, Iterator
from types import AsyncGeneratorType, CellType, CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from ._cut import Reference, del_item, none_item
from ._locals import (
    awaits,
    code_name,
    frame_of,
    has_begun,
    is_running,
    locals_of,
    parameter_names,
    snapshots_of,
)
from ._look import instance_dict, is_a, item, key_text, pairs, plain, read, refers, type_name

LRU_STEP = " (functools.lru_cache) entry"


def read_function(holder: FunctionType, held: object) -> Iterator[Reference]:
    """Closure, defaults, globals and annotations of a function."""
    yield from _closure(holder, held)
    yield from _defaults(holder, held)
    yield from _keyword_defaults(holder, held)
    if holder.__globals__ is held:
        why = "a function keeps the namespace that it was defined in: let the function go"
        yield Reference(".__globals__", "globals", why_not=why)
    if holder.__code__ is held:
        yield Reference(".__code__", "code", why_not="a function cannot lose its code")
    if (type(held) is dict or type(held) is tuple) and _is_annotations(holder, held):
        verb, act = "{path} = {{}}", lambda: _drop_annotations(holder)
        yield Reference(".__annotations__", "annotations", verb, act)


def _closure(holder: FunctionType, held: object) -> Iterator[Reference]:
    cells = holder.__closure__
    if cells is None:
        return
    if cells is held:
        yield Reference(".__closure__", "closure", why_not="cut in the cells of the closure")
    for index, (cell, name) in enumerate(zip(cells, holder.__code__.co_freevars)):
        step = f".<closure>.{plain(name)}"
        verb = f"{{holder}}.__closure__[{index}].cell_contents = None"
        if cell is held:
            yield Reference(step, "cell", why_not="cut what is in the cell", via=(id(cells),))
        elif cell_contents(cell) is held:
            via = (id(cells), id(cell))
            yield Reference(step, "closure", verb, empty_cell(cell, held), via=via)


EMPTY = object()


def cell_contents(cell: Any) -> object:
    """What is in a cell, or EMPTY."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def empty_cell(cell: Any, held: object) -> Callable[[], None]:
    """Put None into a cell if it still holds `held`."""

    def act() -> None:
        if cell_contents(cell) is held:
            cell.cell_contents = None

    return act


def read_cell(holder: object, held: object) -> Iterator[Reference]:
    """A variable that functions share."""
    if cell_contents(holder) is held:
        yield Reference(".cell_contents", "cell", "{path} = None", empty_cell(holder, held))


def _defaults(holder: FunctionType, held: object) -> Iterator[Reference]:
    defaults = holder.__defaults__
    if defaults is None:
        return
    if defaults is held:
        why = "cut the one default that holds it"
        yield Reference(".__defaults__", "defaults", why_not=why)
    names, _ = parameter_names(holder.__code__)
    first = len(names) - len(defaults)
    for index, value in enumerate(tuple.__iter__(defaults)):
        if value is held:
            name = names[first + index] if first + index >= 0 else f"[{index}]"
            if len(defaults) == 1:
                verb = "{holder}.__defaults__ = (None,)"
            else:
                verb = f"{{holder}}.__defaults__ = the same with None for {name}"
            act = _without_default(holder, held)
            step = f"({name}=…) default"
            yield Reference(step, "default", verb, act, via=(id(defaults),))


def _without_default(holder: FunctionType, held: object) -> Callable[[], None]:
    def act() -> None:
        now = holder.__defaults__ or ()
        holder.__defaults__ = tuple(None if value is held else value for value in now)

    return act


def _keyword_defaults(holder: FunctionType, held: object) -> Iterator[Reference]:
    defaults: Any = FunctionType.__dict__["__kwdefaults__"].__get__(holder)
    if defaults is None:
        return
    if defaults is held:
        why = "cut the one default that holds it"
        yield Reference(".__kwdefaults__", "defaults", why_not=why)
    for key, value in pairs(defaults):
        if value is held:
            verb = f"{{holder}}.__kwdefaults__[{key_text(key)}] = None"
            step = f"({plain(key)}=…) default"
            act = none_item(defaults, key, held)
            yield Reference(step, "default", verb, act, via=(id(defaults),))


def _is_annotations(holder: FunctionType, held: object) -> bool:
    # Asking for __annotations__ makes the dict, and on newer versions runs code: go by elimination.
    kwdefaults = FunctionType.__dict__["__kwdefaults__"].__get__(holder)
    builtins = read(holder, "__builtins__")
    others = (holder.__globals__, holder.__defaults__, holder.__closure__, kwdefaults, builtins)
    if any(held is other for other in others) or held is instance_dict(holder):
        return False
    return refers(holder, held)


def _drop_annotations(holder: FunctionType) -> None:
    holder.__annotations__ = {}


def read_builtin_method(holder: object, held: object) -> Iterator[Reference]:
    """`list.append` of some list: a method written in C holds its object."""
    if read(holder, "__self__") is held:
        why = "a method holds its object: let the method go"
        yield Reference(".__self__", "bound object", why_not=why)


def read_partial(holder: object, held: object) -> Iterator[Reference]:
    """Arguments that were given ahead of time."""
    why = "the arguments of a partial cannot be changed: let the partial go"
    args, keywords = read(holder, "args"), read(holder, "keywords")
    if type(args) is tuple and args is not held:
        for index, value in enumerate(args):
            if value is held:
                yield Reference(f".args[{index}]", "argument", why_not=why, via=(id(args),))
    if is_a(keywords, dict) and keywords is not held:
        for key, value in pairs(keywords):
            if value is held:
                step, verb = f".keywords[{key_text(key)}]", "del {path}"
                act = del_item(keywords, key, held)
                yield Reference(step, "argument", verb, act, via=(id(keywords),))


LruCache: Any = type(functools.lru_cache(lambda: None))


def read_lru_cache(holder: Any, held: object) -> Iterator[Reference]:
    """Results and arguments that a cache keeps, and the function inside it."""
    attributes = instance_dict(holder) or {}
    verb, clear = "{holder}.cache_clear()", lambda: LruCache.cache_clear(holder)
    if item(attributes, "__wrapped__") is held:
        why = "the function inside a cache stays as long as the cache"
        step = ".__wrapped__ (functools.lru_cache)"
        yield Reference(step, "wrapped function", why_not=why, via=(id(attributes),))
        return
    for cache in gc.get_referents(holder):
        if type(cache) is not dict or cache is attributes:
            continue
        if cache is held:
            yield Reference(LRU_STEP, "cache", verb, clear)
        for key, value in pairs(cache):
            if key is held:
                step = f"{LRU_STEP} args"
                yield Reference(step, "cache entry", verb, clear, via=(id(cache),))
            elif value is held:
                yield Reference(LRU_STEP, "cache entry", verb, clear, via=(id(cache),))
            elif type(key) is tuple and any(part is held for part in key):
                index = next(at for at, part in enumerate(key) if part is held)
                step, via = f"{LRU_STEP} args[{index}]", (id(cache), id(key))
                yield Reference(step, "cache entry", verb, clear, via=via)
        if refers(holder, held) and held is not cache and _is_result(cache, held):
            yield Reference(LRU_STEP, "cache entry", verb, clear, via=(id(cache),))


def _is_result(cache: dict[Any, Any], held: object) -> bool:
    # A bounded cache keeps its results in links that cannot be looked into; keys were seen above.
    bounded = any(type_name(type(value)) == "_lru_list_elem" for _, value in pairs(cache))
    return bounded and not is_a(held, type) and all(key is not held for key, _ in pairs(cache))


def read_suspended(holder: object, held: object) -> Iterator[Reference]:
    """Variables of a generator, coroutine or async generator, and what it waits for."""
    frame = frame_of(holder)
    if frame is None:
        return
    verb = "{holder}.close()" if _closes(holder) else "{holder}.throw(GeneratorExit)"
    if frame is held:
        yield Reference("", "frame", verb, lambda: _close(holder))
        return
    if awaits(holder) is held:
        yield Reference("", "awaits", verb, lambda: _close(holder))
        return
    known, via = snapshots_of(holder), (id(frame),)
    names = variables(frame, held, known)
    for name in names:
        yield Reference(f": {name}", "local", verb, lambda: _close(holder), via=via)
    if not names and refers(holder, held) and type(held) is not CodeType:
        yield Reference(": (a value in use)", "stack", verb, lambda: _close(holder), via=via)


@functools.cache
def _close_lets_go(begun: bool) -> bool:
    """Whether `close()` lets go of the variables, and not only the generator itself when it goes.

    Some Pythons skip that where no code has to run: up to 3.12.3 (gh-118272), and later ones where the
    generator has not begun (gh-142766). This one is asked, by a generator that has one variable.
    """
    held = {1}
    gone = weakref.ref(held)

    def wait(_: object) -> Generator[None]:
        yield

    waiting = wait(held)
    del held
    if begun:
        next(waiting)
    waiting.close()
    return gone() is None


def _closes(holder: object) -> bool:
    return type(holder) is AsyncGeneratorType or _close_lets_go(has_begun(holder))


def _close(holder: Any) -> None:
    if frame_of(holder) is None:
        return
    if type(holder) is AsyncGeneratorType:
        # aclose() only makes an awaitable: to finish it here, drive it, which works if no await runs.
        _drive(holder.aclose())
    elif _closes(holder):
        holder.close()
    else:
        _throw(holder)


def _throw(holder: Any) -> None:
    """What `close()` does; always by running what is left of the code, behind which all goes."""
    try:
        holder.throw(GeneratorExit)
    except (GeneratorExit, StopIteration):
        return
    raise RuntimeError("it ignored GeneratorExit, and went on")


def _drive(closing: Any) -> None:
    try:
        closing.send(None)
    except (StopIteration, StopAsyncIteration):
        return
    closing.close()
    raise TypeError("this async generator awaits while it closes: await its aclose() instead")


def variables(frame: FrameType, held: object, known: set[int] | None = None) -> list[str]:
    """The names under which a frame holds an object, or the cell of a shared variable."""
    found = locals_of(frame, known)
    if type(held) is not CellType:
        return [name for name, value in found.items() if value is held]
    contents = cell_contents(held)
    shared = [plain(name) for name in frame.f_code.co_cellvars + frame.f_code.co_freevars]
    return [name for name in shared if name in found and found[name] is contents][:1]


def read_frame(holder: FrameType, held: object) -> Iterator[Reference]:
    """Variables of a frame, and the frame that called it."""
    known = snapshots_of(holder)
    running = is_running(holder)
    for name in variables(holder, held, known):
        if running:
            where = code_name(holder.f_code)
            why = f"{where} is running: write `del {name}` there, or let it return"
            yield Reference(f": {name}", "local", "del {path}", why_not=why)
        else:
            yield Reference(f": {name}", "local", "{holder}.clear()", lambda: _clear(holder))
    if holder.f_back is held:
        yield Reference("", "caller", why_not="a frame that runs holds the one that called it")
    if holder.f_globals is held:
        yield Reference(".f_globals", "globals", why_not="a frame keeps its module's namespace")
    if holder.f_trace is held:
        yield Reference(".f_trace", "trace function", why_not="a debugger set it: end the debugger")


def _clear(frame: FrameType) -> None:
    frame.clear()


def read_traceback(holder: TracebackType, held: object) -> Iterator[Reference]:
    """The frames that an exception passed through."""
    frame = holder.tb_frame
    if frame is held:
        step = f" frame {code_name(frame.f_code)} line {holder.tb_lineno}"
        if is_running(frame):
            why = f"{code_name(frame.f_code)} is running: let it return"
            yield Reference(step, "frame", why_not=why)
        else:
            verb = "traceback.clear_frames({holder})"
            yield Reference(step, "frame", verb, lambda: _clear(frame))
    if holder.tb_next is held:
        yield Reference(".tb_next", "traceback", "{path} = None", lambda: _end(holder))


def _end(holder: TracebackType) -> None:
    holder.tb_next = None


def read_exception(holder: BaseException, held: object) -> Iterator[Reference]:
    """Traceback, arguments and the exceptions behind an exception."""
    for name, kind in (
        ("__traceback__", "traceback"),
        ("__cause__", "cause"),
        ("__context__", "context"),
    ):
        getset: Any = BaseException.__dict__[name]
        if getset.__get__(holder) is held:
            act = _unset(getset, holder, held)
            yield Reference(f".{name}", kind, "{path} = None", act)
    args: Any = BaseException.__dict__["args"].__get__(holder)
    if args is held:
        yield Reference(".args", "arguments", "{path} = ()", lambda: _drop_args(holder))
    for index, value in enumerate(tuple.__iter__(args)):
        if value is held:
            verb, act = "{holder}.args = ()", lambda: _drop_args(holder)
            yield Reference(f".args[{index}]", "argument", verb, act, via=(id(args),))


def _unset(getset: Any, holder: object, held: object) -> Callable[[], None]:
    def act() -> None:
        if getset.__get__(holder) is held:
            getset.__set__(holder, None)

    return act


def _drop_args(holder: BaseException) -> None:
    BaseException.__dict__["args"].__set__(holder, ())
