"""Ways to hold an object, one function each. `test_cuts.py` leaks tensors with them.

Each takes an object and returns another that keeps it alive, so that they can be put into each
other. `HOLDERS` has them all by name. The other tables have those that need something beside an
object: a registry of the interpreter, or a thread.
"""

from __future__ import annotations

import asyncio
import atexit
import codecs
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import json
import logging
import os
import queue
import sched
import signal
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.checkpoint

Holder = Callable[[Any], Any]


class Colour(enum.Enum):
    RED = 1


class Key:
    """A key that no literal stands for."""


class Box:
    """An ordinary object."""

    def __init__(self, content: Any) -> None:
        self.content = content


HOLDERS: dict[str, Holder] = {
    "a_dict": lambda held: {"a": 1, "held": held},
    "a_dict_by_number": lambda held: {-1: None, 2.5: held},
    "a_dict_by_tuple": lambda held: {("a", 1, (2.0, None), b"x", True): held},
    "a_dict_by_nan": lambda held: {float("nan"): 0, float("nan"): held},
    "a_dict_by_infinity": lambda held: {float("inf"): held},
    "a_dict_by_class": lambda held: {int: 0, Box: held},
    "a_dict_by_enum": lambda held: {Colour.RED: held},
    "a_dict_by_object": lambda held: {Key(): 0, Key(): held},
    "a_dict_by_function": lambda held: {len: held},
    "a_dict_by_long_text": lambda held: {"k" * 500: held},
    "a_dict_by_odd_text": lambda held: {"two\nlines '\"\x1b{}": held},
    "a_key": lambda held: {0: None, Box(held): 1},
    "an_ordered_dict": lambda held: collections.OrderedDict([("first", 1), ("held", held)]),
    "a_chain_map": lambda held: collections.ChainMap({"x": 1}, {"held": held}),
    "a_mapping_proxy": lambda held: types.MappingProxyType({"held": held}),
    "a_user_dict": lambda held: collections.UserDict(held=held),
    "a_namespace": lambda held: types.SimpleNamespace(held=held, other=1),
    "a_list": lambda held: [1, held, 2],
    "a_list_with_it_twice": lambda held: [held, 1, held, 2, held],
    "a_set": lambda held: {1, "two", Box(held)},
    "a_frozenset": lambda held: [frozenset([1, Box(held)])],
    "a_tuple": lambda held: (1, held),
    "a_namedtuple": lambda held: Pair(0.5, held),
    "a_deque": lambda held: collections.deque([1, held, 3]),
    "an_attribute": lambda held: Box(held),
    "a_class_attribute": lambda held: type("Registry", (), {"weights": held}),
    "the_class_of_an_instance": lambda held: type("Plugin", (), {"weights": held})(),
    "a_partial": lambda held: functools.partial(print, 1, held),
    "a_partial_with_keywords": lambda held: functools.partial(print, end=held),
    "an_exception_with_arguments": lambda held: ValueError("no", held),
    "a_thread_that_was_not_started": lambda held: threading.Thread(target=print, args=(held,)),
    "a_log_record": lambda held: [
        logging.LogRecord("x", 10, "x.py", 1, "batch %s of %s", (held, 2), None)
    ],
}


def holder(make: Holder) -> Holder:
    """Adds one to the table."""
    HOLDERS[make.__name__] = make
    return make


# Containers.


@holder
def a_subclass_of_dict(held: Any) -> Any:
    class Registry(dict):  # type: ignore[type-arg]
        def __delitem__(self, key: object) -> None:
            raise TypeError("a registry forgets nothing")

        def __getitem__(self, key: object) -> Any:
            raise KeyError(key)

        def __iter__(self) -> Any:
            raise TypeError("not this way")

    return Registry(held=held)


@holder
def a_defaultdict(held: Any) -> Any:
    made: Any = collections.defaultdict(list)
    made["batch"].append(held)
    return made


@holder
def a_subclass_of_list(held: Any) -> Any:
    class History(list):  # type: ignore[type-arg]
        def __delitem__(self, index: object) -> None:
            raise TypeError("history stays")

    return History([held])


class Pair(NamedTuple):
    score: float
    weights: Any


@holder
def a_queue(held: Any) -> Any:
    made: queue.Queue[Any] = queue.Queue()
    made.put(("job", held))
    return made


@holder
def a_priority_queue(held: Any) -> Any:
    made: queue.PriorityQueue[Any] = queue.PriorityQueue()
    made.put((1, "job", held))
    return made


@holder
def a_simple_queue(held: Any) -> Any:
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for one in ("first", held, "last"):
        made.put(one)
    return made


@holder
def an_array_of_structures(held: Any) -> Any:
    made = np.zeros(3, dtype=[("n", "i4"), ("o", object)])
    made[1] = (2, [held])
    return made


@holder
def an_array_of_nested_structures(held: Any) -> Any:
    inner = [("q", "i1"), ("o", object, (2,))]
    made = np.zeros((2, 2), dtype=[("n", "i4"), ("in", inner)])
    made["in"]["o"][1, 0, 1] = Box(held)
    return made


@holder
def a_weak_key_dictionary(held: Any) -> Any:
    made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    owner = Key()
    made[owner] = held
    return [made, owner]


@holder
def a_weak_value_dictionary(held: Any) -> Any:
    made: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
    value = made["held"] = Box(held)
    return [made, value]


# Classes and instances.


@holder
def an_attribute_with_an_odd_name(held: Any) -> Any:
    made = Key()
    setattr(made, "class", held)
    setattr(made, "two words", held)
    return made


@holder
def a_private_attribute(held: Any) -> Any:
    class Secretive:
        def __init__(self, content: Any) -> None:
            self.__hidden = content

    return Secretive(held)


@holder
def a_dataclass(held: Any) -> Any:
    @dataclasses.dataclass
    class State:
        weights: Any
        step: int = 0

    return State(held)


@holder
def a_frozen_dataclass(held: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class Config:
        weights: Any

    return Config(held)


@holder
def a_frozen_dataclass_with_slots(held: Any) -> Any:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Config:
        weights: Any

    return Config(held)


@holder
def slots(held: Any) -> Any:
    class Slotted:
        __slots__ = ("weights",)

    made = Slotted()
    made.weights = held
    return made


@holder
def an_object_that_refuses(held: Any) -> Any:
    class Refusing:
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError("read-only")

        def __delattr__(self, name: str) -> None:
            raise AttributeError("read-only")

        def __getattribute__(self, name: str) -> Any:
            raise AttributeError(name)

    made = Refusing()
    object.__setattr__(made, "weights", held)
    return made


@holder
def a_class_whose_metaclass_refuses(held: Any) -> Any:
    class Meta(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise AttributeError("read-only")

        def __getattribute__(cls, name: str) -> Any:
            raise AttributeError(name)

    return Meta("Sealed", (), {"weights": held})


@holder
def an_enum_member(held: Any) -> Any:
    class Sizes(enum.Enum):
        LARGE = 1

    Sizes.LARGE.weights = held  # type: ignore[attr-defined]
    return Sizes


@holder
def a_property(held: Any) -> Any:
    class Model:
        @property
        def weights(self) -> Any:
            return held

    return Model()


@holder
def an_attribute_behind_a_property(held: Any) -> Any:
    class Model:
        @property
        def weights(self) -> Any:
            raise RuntimeError("not loaded")

    made = Model()
    vars(made)["weights"] = held
    return made


@holder
def a_data_descriptor(held: Any) -> Any:
    class Setting:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __get__(self, owner: object, kind: object = None) -> Any:
            raise AttributeError("no value")

        def __set__(self, owner: object, value: object) -> None:
            raise AttributeError("read-only")

    class Model:
        setting = Setting(held)

    return Model()


@holder
def an_attribute_behind_a_descriptor(held: Any) -> Any:
    class Setting:
        def __get__(self, owner: object, kind: object = None) -> Any:
            return None

        def __set__(self, owner: object, value: object) -> None:
            pass

    class Model:
        setting = Setting()

    made = Model()
    vars(made)["setting"] = held
    return made


@holder
def a_descriptor_with_a_table(held: Any) -> Any:
    class Setting:
        def __init__(self) -> None:
            self.values: Any = {}

        def __get__(self, owner: object, kind: object = None) -> Any:
            return self.values[id(owner)]

        def __set__(self, owner: object, value: object) -> None:
            self.values[id(owner)] = value

    class Model:
        setting = Setting()

    made: Any = Model()
    made.setting = held
    return made


@holder
def a_static_method(held: Any) -> Any:
    class Model:
        @staticmethod
        def load(cache: Any = {"held": held}) -> Any:  # noqa: B006
            return cache

    return Model


@holder
def a_class_method(held: Any) -> Any:
    class Model:
        @classmethod
        def load(cls) -> Any:
            return None

    vars(Model)["load"].__func__.cache = [held]
    return Model


@holder
def a_bound_method(held: Any) -> Any:
    class Runner(Box):
        def run(self) -> None: ...

    return Runner(held).run


@holder
def a_cached_property(held: Any) -> Any:
    class Model:
        @functools.cached_property
        def weights(self) -> Any:
            return cell.pop()

    cell = [held]
    made = Model()
    assert made.weights is held
    return made


# Functions.


@holder
def a_closure(held: Any) -> Any:
    def serve() -> Any:
        return held

    return serve


@holder
def a_closure_of_a_queued_job(held: Any) -> Any:
    def job() -> Any:
        return held

    return collections.deque([("first", print), ("second", job)])


@holder
def a_default(held: Any) -> Any:
    def serve(batch: Any, mask: Any = held, scale: float = 1.0) -> Any:
        return mask

    return serve


@holder
def a_keyword_default(held: Any) -> Any:
    def serve(*, mask: Any = held) -> Any:
        return mask

    return serve


@holder
def an_attribute_of_a_function(held: Any) -> Any:
    def serve() -> None: ...

    serve.cache = held  # type: ignore[attr-defined]
    return serve


@holder
def an_annotation(held: Any) -> Any:
    def serve() -> None: ...

    serve.__annotations__["x"] = held
    return serve


@holder
def a_cache(held: Any) -> Any:
    @functools.cache
    def load(name: str) -> Any:
        return cell.pop()

    cell = [held]
    load("a")
    return load


@holder
def a_bounded_cache_by_argument(held: Any) -> Any:
    @functools.lru_cache(maxsize=4)
    def size(one: Any, other: int) -> int:
        return 1

    size(Box(held), 1)
    return size


@holder
def a_cache_of_a_method(held: Any) -> Any:
    class Model(Box):
        @functools.lru_cache(maxsize=8)  # noqa: B019
        def embed(self, text: str) -> int:
            return 1

    Model(held).embed("a")
    return Model


@holder
def the_globals_of_a_function(held: Any) -> Any:
    namespace: dict[str, Any] = {"weights": held}
    exec("def serve(): return weights", namespace)
    return namespace["serve"]


# Code that waits.


@holder
def a_generator(held: Any) -> Any:
    def stream(batch: Any) -> Iterator[Any]:
        yield 1
        yield batch

    made = stream(held)
    next(made)
    return made


@holder
def a_generator_that_has_not_begun(held: Any) -> Any:
    def stream(batch: Any) -> Iterator[Any]:
        yield batch

    return stream(held)


@holder
def a_generator_with_a_list(held: Any) -> Any:
    def stream(batches: list[Any]) -> Iterator[Any]:
        yield 1
        yield batches

    made = stream([held])
    next(made)
    return made


@holder
def a_coroutine(held: Any) -> Any:
    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    async def poll(batch: Any) -> None:
        await pause()

    made = poll(held)
    made.send(None)
    return made


@holder
def an_async_generator(held: Any) -> Any:
    async def stream(batch: Any) -> Any:
        yield 1
        yield batch

    made = stream(held)
    with contextlib.suppress(StopIteration):
        made.__anext__().send(None)
    return made


@holder
def an_exit_stack(held: Any) -> Any:
    stack = contextlib.ExitStack()
    stack.callback(print, held)
    return stack


@holder
def a_context_manager(held: Any) -> Any:
    @contextlib.contextmanager
    def session(batch: Any) -> Iterator[None]:
        yield

    made = session(held)
    made.__enter__()
    return made


# Exceptions.


def _fail(batch: Any) -> None:
    raise ValueError("no")


@holder
def an_exception(held: Any) -> Any:
    try:
        _fail(held)
    except ValueError as error:
        return error.with_traceback(error.__traceback__)
    finally:
        del held


@holder
def the_cause_of_an_exception(held: Any) -> Any:
    error = RuntimeError("no")
    error.__cause__ = ValueError("why", held)
    return error


@holder
def an_attribute_of_an_exception(held: Any) -> Any:
    error = RuntimeError("no")
    error.batch = held  # type: ignore[attr-defined]
    return error


# Futures and calls.


@holder
def a_future_of_a_pool(held: Any) -> Any:
    made: Future[Any] = Future()
    made.set_result(held)
    return made


@holder
def a_callback_of_a_future(held: Any) -> Any:
    made: Future[Any] = Future()
    made.add_done_callback(functools.partial(print, held))
    return made


@holder
def a_scheduled_event(held: Any) -> Any:
    made = sched.scheduler()
    made.enter(3600, 1, print, (held,))
    return made


@holder
def a_token(held: Any) -> Any:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("batch")
    variable.set(held)
    token = variable.set(None)
    return [variable, token]


@holder
def a_context(held: Any) -> Any:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("batch")
    context = contextvars.Context()
    context.run(variable.set, held)
    return [variable, context]


@holder
def a_thread_local_of_this_thread(held: Any) -> Any:
    made = threading.local()
    made.batch = held
    return made


@holder
def a_module_that_is_not_imported(held: Any) -> Any:
    made = types.ModuleType("plugin")
    made.weights = held  # type: ignore[attr-defined]
    return made


# What holds an object in a place of its own. Each gets the object and the module `shop`.

Place = Callable[[Any, Any], Any]
PLACES: dict[str, Place] = {}
NEEDS: dict[str, str] = {}
"""The package that a place needs, where that may not be installed."""


def place(make: Place) -> Place:
    """Adds one to the table."""
    PLACES[make.__name__] = make
    return make


def place_of(package: str) -> Callable[[Place], Place]:
    """Adds one that needs a package."""

    def add(make: Place) -> Place:
        NEEDS[make.__name__] = package
        return place(make)

    return add


@place
def an_odd_name_of_a_module(held: Any, shop: Any) -> Any:
    vars(shop)["two words"] = held


@place
def a_finalizer(held: Any, shop: Any) -> Any:
    shop.session = Key()
    weakref.finalize(shop.session, print, held).atexit = False


@place
def a_queued_job_of_a_pool(held: Any, shop: Any) -> Any:
    shop.pool = ThreadPoolExecutor(1)
    begun, shop.more = threading.Event(), threading.Event()
    shop.busy = shop.pool.submit(lambda: (begun.set(), shop.more.wait()))
    begun.wait()

    def job() -> Any:
        return held

    shop.first = shop.pool.submit(int, "1")
    shop.pool.submit(job)
    shop.last = shop.pool.submit(int, "2")

    def end() -> None:
        shop.more.set()
        shop.pool.shutdown()
        # The other jobs were done as if nothing had been.
        assert (shop.first.result(), shop.last.result()) == (1, 2)

    return end


@place
def a_delayed_call(held: Any, shop: Any) -> Any:
    shop.loop = asyncio.new_event_loop()
    shop.loop.call_later(3600, print, held)
    return shop.loop.close


@place
def a_delayed_call_of_a_closure(held: Any, shop: Any) -> Any:
    shop.loop = asyncio.new_event_loop()
    shop.loop.call_later(3600, lambda: held)
    return shop.loop.close


def _in_a_loop(start: Callable[[], Any], shop: Any) -> Callable[[], None]:
    """Runs something in a loop, which stays open."""
    shop.loop = asyncio.new_event_loop()
    shop.loop.run_until_complete(start())
    return shop.loop.close


@place
def a_task_that_waits(held: Any, shop: Any) -> Any:
    async def poll(batch: Any, changed: asyncio.Event) -> None:
        await changed.wait()

    async def start() -> None:
        shop.changed = asyncio.Event()
        shop.task = asyncio.ensure_future(poll(cell.pop(), shop.changed))
        await asyncio.sleep(0)

    cell = [held]
    return _in_a_loop(start, shop)


@place
def a_task_that_nobody_names(held: Any, shop: Any) -> Any:
    end = a_task_that_waits(held, shop)
    del shop.task
    return end


@place
def a_task_of_a_closed_loop(held: Any, shop: Any) -> Any:
    a_task_that_waits(held, shop)
    shop.loop.close()


@place
def a_task_that_has_ended(held: Any, shop: Any) -> Any:
    async def load() -> Any:
        return cell.pop()

    async def start() -> None:
        shop.tasks = [asyncio.ensure_future(load())]
        await shop.tasks[0]

    cell = [held]
    return _in_a_loop(start, shop)


@place
def a_task_that_failed(held: Any, shop: Any) -> Any:
    async def load(batch: Any) -> Any:
        raise ValueError("no")

    async def start() -> None:
        shop.tasks = [asyncio.ensure_future(load(cell.pop()))]
        await asyncio.wait(shop.tasks)

    cell = [held]
    return _in_a_loop(start, shop)


@place
def a_task_of_another_thread(held: Any, shop: Any) -> Any:
    async def poll(batch: Any) -> None:
        shop.changed = asyncio.Event()
        await shop.changed.wait()

    async def start(batch: Any) -> None:
        shop.task = asyncio.ensure_future(poll(batch))
        del batch
        await asyncio.sleep(0)

    shop.loop = asyncio.new_event_loop()
    thread = threading.Thread(target=shop.loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(held), shop.loop).result()

    def end() -> None:
        shop.loop.call_soon_threadsafe(shop.loop.stop)
        thread.join()
        shop.loop.close()

    return end


@place
def the_result_of_a_future(held: Any, shop: Any) -> Any:
    shop.loop = asyncio.new_event_loop()
    shop.future = shop.loop.create_future()
    shop.future.set_result(held)
    return shop.loop.close


@place
def a_callback_of_an_asyncio_future(held: Any, shop: Any) -> Any:
    shop.loop = asyncio.new_event_loop()
    shop.future = shop.loop.create_future()
    shop.future.add_done_callback(functools.partial(print, held))
    return shop.loop.close


@place
def a_context_variable(held: Any, shop: Any) -> Any:
    shop.batch = contextvars.ContextVar("batch")
    shop.batch.set(held)


@place
def an_attribute_of_a_thread(held: Any, shop: Any) -> Any:
    class Worker(threading.Thread):
        def run(self) -> None:
            done.wait()

    done = threading.Event()
    worker = Worker(name="worker of shop")
    worker.weights = held  # type: ignore[attr-defined]
    worker.start()

    def end() -> None:
        done.set()
        worker.join()

    return end


@place
def a_timer(held: Any, shop: Any) -> Any:
    timer = threading.Timer(3600, print, (held,))
    timer.start()
    return timer.cancel


@place
def a_signal_handler(held: Any, shop: Any) -> Any:
    def handle(number: int, frame: object) -> Any:
        return held

    before = signal.signal(signal.SIGUSR2, handle)
    return lambda: signal.signal(signal.SIGUSR2, before)


@place
def an_exit_callback(held: Any, shop: Any) -> Any:
    atexit.register(print, held)
    return lambda: atexit.unregister(print)


@place
def an_argument_by_name_of_an_exit_callback(held: Any, shop: Any) -> Any:
    atexit.register(print, end="", file=types.SimpleNamespace(write=lambda text: held))
    return lambda: atexit.unregister(print)


@place
def an_exit_callback_of_a_closure(held: Any, shop: Any) -> Any:
    def save() -> Any:
        return held

    shop.save = save
    atexit.register(save)
    return lambda: atexit.unregister(save)


@place
def the_last_exception(held: Any, shop: Any) -> Any:
    error = HOLDERS["an_exception"](held)
    sys.last_type, sys.last_value, sys.last_traceback = ValueError, error, error.__traceback__

    def end() -> None:
        for name in ("last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)

    return end


@place
def an_excepthook(held: Any, shop: Any) -> Any:
    def hook(*details: Any) -> Any:
        return held

    before, sys.excepthook = sys.excepthook, hook
    return lambda: setattr(sys, "excepthook", before)


@place
def a_log_handler(held: Any, shop: Any) -> Any:
    class Memory(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.records: list[Any] = []

        def emit(self, record: Any) -> None:
            self.records.append(record)

    handler = Memory()
    logging.getLogger("shop").addHandler(handler)
    logging.getLogger("shop").error("batch %s", held)
    return lambda: logging.getLogger("shop").handlers.clear()


def _in_a_thread(begin: Callable[[], Any], name: str | None = None) -> Callable[[], None]:
    """Runs something in a thread, which stays, and keeps its result, until it is told to end."""
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        batch = begin()
        begun.set()
        ended.wait(60)
        del batch

    thread = threading.Thread(target=run, name=name)
    thread.start()
    begun.wait(60)

    def end() -> None:
        ended.set()
        thread.join()

    return end


class State(threading.local):
    """Attributes that each thread has for itself."""

    def __init__(self) -> None:
        self.cache: Any = {}


@place
def a_thread_local_of_another_thread(held: Any, shop: Any) -> Any:
    shop.local = threading.local()
    cell = [held]
    return _in_a_thread(lambda: setattr(shop.local, "batch", cell.pop()))


@place
def a_variable_of_a_running_thread(held: Any, shop: Any) -> Any:
    return _in_a_thread([held].pop, name="worker of shop")


# Tensors whose memory others show, or that graphs keep.

SHOWN: dict[str, Holder] = {
    "a_name_of_a_module": lambda held: held,
    "an_array_by_dlpack": lambda held: np.from_dlpack(held),
    "a_tensor_by_dlpack_over_an_array": lambda held: [torch.from_dlpack(np.from_dlpack(held))],
    "a_tensor_by_dlpack": lambda held: torch.from_dlpack(held),
    "a_capsule": lambda held: held.__dlpack__(),
    "a_capsule_in_a_list": lambda held: [1, held.numpy().__dlpack__()],
    "a_tensor_over_an_array": lambda held: {"batch": torch.from_numpy(held.numpy()[8:])},
    "a_tensor_over_a_buffer": lambda held: torch.frombuffer(
        memoryview(held.numpy()), dtype=torch.float32
    ),
    "a_flat_iterator": lambda held: held.numpy().flat,
    "an_iterator_over_arrays": lambda held: [np.nditer(held.numpy())],
    "a_broadcast": lambda held: np.broadcast(held.numpy(), 1),
    "a_node_of_a_graph": lambda held: (held.requires_grad_() * held).sum().grad_fn,
    "the_next_nodes_of_a_graph": lambda held: (
        (held.requires_grad_() + 1).sum().grad_fn.next_functions
    ),
    "the_node_of_a_leaf": lambda held: [(held.requires_grad_() * 2).grad_fn.next_functions[0][0]],
    "a_row_of_an_array": lambda held: held.numpy().view([("x", "f4"), ("y", "f4")])[3],
}
"""What is `shop.held`, made of the tensor alone."""


def _show(make: Holder, held: Any, shop: Any) -> None:
    shop.held = make(held)


PLACES.update((name, functools.partial(_show, make)) for name, make in SHOWN.items())


@place
def the_context_of_a_function(held: Any, shop: Any) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            shop.held = [ctx]
            return x.sum()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    held.requires_grad_()
    Double.apply(held)


@place
def an_argument_of_a_checkpoint(held: Any, shop: Any) -> Any:
    def run(x: Any, weights: Any) -> Any:
        return (x * weights).sum()

    one = torch.ones(1, requires_grad=True)
    shop.held = torch.utils.checkpoint.checkpoint(run, one, held, use_reentrant=False)


@place
def the_result_of_a_future_of_torch(held: Any, shop: Any) -> Any:
    shop.held = torch.futures.Future()
    shop.held.set_result([held])


@place
def a_mode_of_torch(held: Any, shop: Any) -> Any:
    class Mode(torch.overrides.TorchFunctionMode):
        cache: Any

        def __torch_function__(self, run: Any, types: Any, args: Any = (), more: Any = None) -> Any:
            return run(*args, **(more or {}))

    mode = Mode()
    mode.cache = held
    mode.__enter__()
    end = weakref.ref(mode)

    def leave() -> None:
        left = end()
        assert left is not None
        left.__exit__(None, None, None)

    return leave


# What runs later, or hides in the interpreter.


@place
def an_exit_callback_that_nobody_names(held: Any, shop: Any) -> Any:
    def save_on_exit() -> Any:
        return held

    atexit.register(save_on_exit)


@place
def an_exit_callback_of_an_object(held: Any, shop: Any) -> Any:
    class Session(Box):
        def close_on_exit(self) -> None: ...

    atexit.register(Session(held).close_on_exit)


@place
def an_exit_callback_of_a_partial(held: Any, shop: Any) -> Any:
    atexit.register(functools.partial(print, held))


@place
def an_entry_of_a_context_variable(held: Any, shop: Any) -> Any:
    contextvars.ContextVar[Any]("requests").set([{"batch": held}])


@place
def a_subclass_of_thread_local(held: Any, shop: Any) -> Any:
    shop.state = State()
    shop.state.cache["batch"] = held


@place
def an_async_generator_that_waits_at_its_end(held: Any, shop: Any) -> Any:
    async def stream(batch: Any) -> Any:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            shop.has_ended = True

    async def start() -> None:
        shop.stream = stream(cell.pop())
        await shop.stream.__anext__()

    cell = [held]
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()

    def end() -> None:
        assert shop.has_ended

    return end


@place
def a_hook_of_the_interpreter(held: Any, shop: Any) -> Any:
    def hook(value: object) -> Any:
        return held

    sys.displayhook = hook

    def end() -> None:
        assert sys.displayhook is sys.__displayhook__

    return end


@place
def a_function_in_place_of_another(held: Any, shop: Any) -> Any:
    def wrapped(load: Any) -> Any:
        def dumps(*args: Any) -> Any:
            return load(*args), held

        return dumps

    before = json.dumps
    json.dumps = wrapped(json.dumps)

    def end() -> None:
        assert json.dumps is before

    return end


@place_of("greenlet")
def a_greenlet(held: Any, shop: Any) -> Any:
    import greenlet

    def work(batch: Any) -> None:
        greenlet.getcurrent().parent.switch()

    shop.worker = greenlet.greenlet(work)
    shop.worker.switch(held)


@place_of("greenlet")
def a_variable_deep_in_a_greenlet(held: Any, shop: Any) -> Any:
    import greenlet

    def wait(inner: Any) -> None:
        greenlet.getcurrent().parent.switch()

    def work() -> None:
        batch = [cell.pop()]
        wait(batch)

    cell = [held]
    shop.workers = {"first": greenlet.greenlet(work)}
    shop.workers["first"].switch()


@place_of("pandas")
def an_element_of_a_frame(held: Any, shop: Any) -> Any:
    import pandas

    shop.frame = pandas.DataFrame({"name": [1, 2], "weights": [None, held]})


@place_of("pandas")
def a_frame_over_an_array(held: Any, shop: Any) -> Any:
    import pandas

    shop.frame = pandas.DataFrame(held.numpy().reshape(-1, 4), copy=False)


@place_of("pyarrow")
def a_buffer_of_arrow(held: Any, shop: Any) -> Any:
    import pyarrow

    shop.held = [pyarrow.py_buffer(held.numpy())]


@place_of("pyarrow")
def a_table_of_arrow(held: Any, shop: Any) -> Any:
    import pyarrow

    shop.held = pyarrow.table({"x": pyarrow.array(held.numpy())[8:]})


@place
def a_record_in_a_list(held: Any, shop: Any) -> Any:
    rows = held.numpy().view([("x", "f4"), ("y", "f4")]).view(np.recarray)
    shop.best = [None, rows[7]]


@place
def a_hook_of_a_node(held: Any, shop: Any) -> Any:
    shop.loss = torch.ones(2, requires_grad=True) * 2
    shop.loss.grad_fn.register_hook(lambda inputs, outputs: print(held))


@place
def a_hook_before_a_node_deep_in_a_graph(held: Any, shop: Any) -> Any:
    inner = torch.ones(2, requires_grad=True) * 2
    inner.grad_fn.register_prehook(lambda outputs: print(held))
    shop.loss = inner.sum()


@place
def a_hook_of_a_node_that_adds_gradients(held: Any, shop: Any) -> Any:
    leaf = torch.ones(2, requires_grad=True)
    shop.loss = leaf * 2
    node = shop.loss.grad_fn.next_functions[0][0]
    node.register_hook(lambda inputs, outputs: print(held))


@place
def a_hook_of_a_tensor_that_is_gone(held: Any, shop: Any) -> Any:
    inner = torch.ones(2, requires_grad=True) * 2
    inner.register_hook(lambda gradient: print(held))
    shop.loss = inner.sum()


@place
def a_default_of_a_hook(held: Any, shop: Any) -> Any:
    shop.model = torch.nn.Linear(1, 1)
    shop.model.register_forward_hook(lambda model, inputs, outputs, batch=held: None)


@place
def a_keyword_default_of_a_callback(held: Any, shop: Any) -> Any:
    def done(event: Any, *, batch: Any = held) -> None: ...

    shop.callbacks = [(1, done)]


@place_of("readline")
def a_hook_of_readline(held: Any, shop: Any) -> Any:
    import readline

    readline.set_startup_hook(lambda: print(held))
    return readline.set_startup_hook


@place_of("readline")
def the_completer_of_readline(held: Any, shop: Any) -> Any:
    import readline

    readline.set_pre_input_hook(lambda: None)
    readline.set_completer(lambda text, state: str(held))

    def end() -> None:
        readline.set_completer()
        readline.set_pre_input_hook()

    return end


@place
def an_entry_of_a_thread_local_of_another_thread(held: Any, shop: Any) -> Any:
    shop.state = State()
    cell = [held]
    return _in_a_thread(lambda: shop.state.cache.update(batch=cell.pop()))


@place
def a_codec(held: Any, shop: Any) -> Any:
    codecs.register(lambda name: None if name else held)


@place
def an_error_handler_of_codecs(held: Any, shop: Any) -> Any:
    codecs.register_error("shop", lambda error: (str(held), 0))


@place
def the_cache_of_codecs(held: Any, shop: Any) -> Any:
    cell = [held]

    def search(name: str) -> Any:
        encode: Any = functools.partial(str, cell.pop()) if name == "shop" else None
        return codecs.CodecInfo(encode, encode, name=name) if encode else None

    codecs.register(search)
    codecs.lookup("shop")
    return lambda: codecs.unregister(search)


@place
def a_function_that_runs_at_fork(held: Any, shop: Any) -> Any:
    cell = [held]
    os.register_at_fork(after_in_child=lambda: print(cell))
    return cell.clear


@place
def an_audit_hook(held: Any, shop: Any) -> Any:
    cell = [held]
    sys.addaudithook(lambda name, arguments: cell and None)
    return cell.clear


@place
def the_profile_function_of_another_thread(held: Any, shop: Any) -> Any:
    cell = [functools.partial(_ignore, held)]
    return _in_a_thread(lambda: sys.setprofile(cell.pop()))


@place
def the_trace_function_of_another_thread(held: Any, shop: Any) -> Any:
    cell = [functools.partial(_ignore, held)]
    return _in_a_thread(lambda: sys.settrace(cell.pop()))


@place
def a_variable_of_a_function_that_was_wrapped_twice(held: Any, shop: Any) -> Any:
    """To put back the function inside of the outermost one would free nothing."""

    def wrapped(function: Any, variable: Any) -> Any:
        @functools.wraps(function)
        def run() -> Any:
            return function(), variable

        return run

    shop.answer = wrapped(wrapped(_ignore, held), None)
    shop.answer.__name__ = shop.answer.__wrapped__.__name__ = "answer"


@place
def hooks_for_saved_tensors_that_a_variable_has_too(held: Any, shop: Any) -> Any:
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: (one, held), lambda one: one[0])
    hooks.__enter__()
    shop.hooks = hooks
    autograd = torch._C._autograd

    def end() -> None:
        if autograd._top_saved_tensors_default_hooks(True) is not None:
            autograd._pop_saved_tensors_default_hooks()

    return end


@place
def a_type_in_several_caches_of_typing(held: Any, shop: Any) -> Any:
    annotated = typing.Annotated[int, held]
    typing.Callable[[annotated], typing.Tuple[annotated, ...]]  # noqa: UP006


@place
def a_profile_function(held: Any, shop: Any) -> Any:
    sys.setprofile(lambda *_: held is None)
    return lambda: sys.setprofile(None)


@place
def a_method_that_was_replaced(held: Any, shop: Any) -> Any:
    class Model:
        def forward(self) -> None: ...

    def replace() -> None:
        forward = Model.forward

        def patched(self: Any) -> Any:
            return forward(self) if held is not None else None

        Model.forward = patched  # type: ignore[method-assign]

    replace()
    shop.Model = Model


def _ignore(*_: Any) -> None: ...


if sys.version_info >= (3, 12):

    @place
    def a_callback_of_monitoring(held: Any, shop: Any) -> Any:
        monitoring = sys.monitoring
        monitoring.use_tool_id(3, "shop")
        event = monitoring.events.PY_START
        monitoring.register_callback(3, event, functools.partial(_ignore, held))

        def end() -> None:
            monitoring.register_callback(3, event, None)
            monitoring.free_tool_id(3)

        return end


BY_HAND = {
    "a_callback_of_monitoring",
    "a_function_that_runs_at_fork",
    "a_variable_of_a_running_thread",
    "an_audit_hook",
    "the_profile_function_of_another_thread",
    "the_trace_function_of_another_thread",
}
"""Places that no statement of another thread or module reaches."""
WITH_COMPILER = {"an_argument_of_a_checkpoint"}
"""Places that load torch's compiler."""
