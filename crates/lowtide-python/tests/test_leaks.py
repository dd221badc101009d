"""Small leaking programs of many kinds, which `why` has not been made for.

Each is a whole program. What it leaks is named; the first remedy that is printed, a statement or
`lowtide.cut(1)`, frees what its row says; and `lowtide.cut("all")` frees everything. What the program
still needs works after the first remedy.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from typing import NamedTuple

import pytest
from leaks_by_strangers import LEAKS as STRANGERS

alone = pytest.importorskip("alone")
pytest.importorskip("torch", reason="the leaks are tensors")


class Leak(NamedTuple):
    """A program, a regex for the holder that a person would name, and what has to be true afterwards."""

    program: str
    names: str
    works: str = "True"
    by_hand: bool = False


LEAKS = {
    "two leaks at once": Leak(
        """
        history, best = [], {}
        def step(n):
            history.append(big())
            best[n] = big(8)
        step(1), step(2)
        """,
        "best(.|\n)*history",
        "history is not None and best is not None and (step(3), len(history))[1]",
    ),
    "a class attribute": Leak(
        """
        class Trainer:
            last_batch = None
            def run(self): Trainer.last_batch = big(); return 1
        Trainer().run()
        """,
        r"Trainer\.last_batch",
        "Trainer().run() == 1",
    ),
    "a list of results in a closure": Leak(
        """
        def counter():
            seen = []
            def add(x): seen.append(x); return len(seen)
            return add
        add = counter()
        add(big()), add(big())
        """,
        "add|seen",
        "add(1) >= 1",
    ),
    "records of a logger's handler": Leak(
        """
        import logging, logging.handlers
        handler = logging.handlers.MemoryHandler(1000)
        log = logging.getLogger("train"); log.addHandler(handler)
        log.warning("loss %s", big())
        """,
        "handler|train",
        "log.warning('again') is None",
    ),
    "an exception that is kept": Leak(
        """
        errors = []
        def work(batch):
            hidden = batch * 2; watch(hidden)
            raise ValueError("no")
        try: work(big())
        except ValueError as error: errors.append(error)
        """,
        "errors",
        "errors is not None",
    ),
    "a thread that waits with a local": Leak(
        """
        import threading, queue
        jobs = queue.Queue()
        def serve():
            batch = big()
            jobs.get()
        thread = threading.Thread(target=serve, daemon=True); thread.start()
        import time; time.sleep(0.3)
        """,
        r"by hand  serve\(\) is running",
        by_hand=True,
    ),
    "a generator that is not at its end": Leak(
        """
        def batches():
            buffer = big()
            for i in range(3): yield i
        stream = batches(); next(stream)
        """,
        "stream|batches",
    ),
    "a dataclass with a default factory's list": Leak(
        """
        from dataclasses import dataclass, field
        @dataclass
        class State:
            step: int = 0
            losses: list = field(default_factory=list)
        state = State()
        for _ in range(3): state.losses.append(big()); state.step += 1
        """,
        r"state\.losses",
        "state.step == 3 and state.losses == []",
    ),
    "a weakref callback": Leak(
        """
        import weakref, functools
        class Node: pass
        node = Node()
        def gone(batch, ref): pass
        ref = weakref.ref(node, functools.partial(gone, big()))
        """,
        "ref",
        "node is not None",
    ),
    "lru_cache on a method": Leak(
        """
        import functools
        class Encoder:
            @functools.lru_cache(maxsize=None)
            def encode(self, text): return big()
        encoder = Encoder()
        encoder.encode("a"), encoder.encode("b")
        """,
        "Encoder.encode",
        "encoder.encode('c') is not None",
    ),
    "a forward hook that stores": Leak(
        """
        model = torch.nn.Linear(4, 4)
        seen = []
        handle = model.register_forward_hook(lambda m, i, o: seen.append(big()))
        model(torch.ones(1, 4)); model(torch.ones(1, 4))
        """,
        "seen",
        "model(torch.ones(1, 4)) is not None and handle.remove() is None",
    ),
    "state of an optimizer": Leak(
        """
        weight = torch.nn.Parameter(big(16))
        adam = torch.optim.Adam([weight])
        weight.sum().backward(); watch(weight.grad); adam.step()
        for value in adam.state[weight].values(): watch(value)
        """,
        "adam|weight",
    ),
    "losses with their graphs": Leak(
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
        for p in model.parameters(): watch(p)
        losses = [model(torch.ones(2, 1024)).sum() for _ in range(3)]
        del model, p
        """,
        "losses",
        "losses == [] or losses is not None",
    ),
    "a model whose graph is kept": Leak(
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
        for p in model.parameters(): watch(p)
        del p
        out = model(torch.ones(2, 1024)).sum()
        """,
        r"model \(.*Sequential, 8 pieces\)(.|\n)*graph of out",
    ),
    "an iterator of a data loader": Leak(
        """
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(big().reshape(-1, 1024))
        loader = iter(DataLoader(data, batch_size=8)); next(loader)
        del data
        """,
        "loader",
    ),
    "a task that waits": Leak(
        """
        import asyncio
        loop = asyncio.new_event_loop()
        async def serve(batch):
            await asyncio.Event().wait()
        task = loop.create_task(serve(big()), name="server")
        loop.run_until_complete(asyncio.sleep(0))
        """,
        "server|task",
    ),
    "a context variable": Leak(
        """
        import contextvars
        request = contextvars.ContextVar("request", default=None)
        request.set({"id": 7, "batch": big()})
        """,
        "request",
        "request.get() is None or request.get()['id'] == 7",
    ),
    "a test case that keeps its fixture": Leak(
        """
        import unittest
        class Test(unittest.TestCase):
            def setUp(self): self.batch = big()
            def test(self): pass
        suite = unittest.TestSuite([Test("test")]); suite._removeTestAtIndex = lambda index: None
        unittest.TextTestRunner(stream=open("/dev/null", "w")).run(suite)
        """,
        "suite|batch",
    ),
    "a registry by name, and one entry that is needed": Leak(
        """
        models = {"name": "registry", "version": 3, "tags": ["a"], "old": big()}
        """,
        r"models\['old'\]",
        "models['name'] == 'registry' and models['version'] == 3",
    ),
    "a job of a pool whose result nobody takes": Leak(
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        done = [pool.submit(lambda: big()) for _ in range(2)]
        for one in done: one.exception()
        """,
        "done",
        "pool.submit(int).result() == 0",
    ),
    "a queue that nobody empties": Leak(
        """
        import queue
        jobs = queue.Queue()
        jobs.put(big()), jobs.put(big())
        """,
        "jobs",
        "jobs.unfinished_tasks == 0 and jobs.put(1) is None",
    ),
    "a partial in a table of callbacks": Leak(
        """
        import functools
        callbacks = {}
        def on_end(batch): return 1
        callbacks["end"] = functools.partial(on_end, big())
        """,
        "callbacks",
        "callbacks == {} and on_end(2) == 1",
    ),
    "the attribute of a function": Leak(
        """
        def embed(x):
            embed.cache[x] = big()
            return 1
        embed.cache = {}
        embed("a"), embed("b")
        """,
        r"embed\.cache",
        "embed('c') == 1",
    ),
    "a deque in a slot": Leak(
        """
        from collections import deque
        class Replay:
            __slots__ = ("items",)
            def __init__(self): self.items = deque(maxlen=9)
            def add(self): self.items.append(big())
        replay = Replay(); replay.add(), replay.add()
        """,
        r"replay\.items",
        "replay.add() is None",
    ),
    "shared by two registries": Leak(
        """
        by_name, by_id = {}, {}
        for number in range(3):
            by_name[str(number)] = by_id[number] = big()
        """,
        "by_name(.|\n)*by_id|by_id(.|\n)*by_name",
        "by_name is not None and by_id is not None",
    ),
    "a mock that remembers its calls": Leak(
        """
        from unittest import mock
        send = mock.Mock(); send(big()); send(big())
        """,
        "send",
    ),
    "metadata of a dtype, which an array has": Leak(
        """
        import numpy
        table = numpy.zeros(4, dtype=numpy.dtype("f4", metadata={"calibration": big()}))
        """,
        r"table\.dtype\.metadata\['calibration'\]",
    ),
    "the time zone of a datetime": Leak(
        """
        import datetime
        class Zone(datetime.tzinfo):
            def __init__(self): self.table = big()
        stamps = [datetime.datetime(2020, 1, 1, tzinfo=Zone())]
        """,
        r"stamps\[0\]\.tzinfo\.table",
        "stamps is not None",
    ),
    "constants of code": Leak(
        """
        def f(): return 1
        f.__code__ = f.__code__.replace(co_consts=(None, big()))
        """,
        r"f\.__code__\.co_consts\[1\]",
    ),
    "a sparse matrix in rows": Leak(
        """
        dense = torch.ones(1024, 1024)
        graphs = {"train": dense.to_sparse_csr()}; del dense
        for part in ("values", "col_indices"): watch(getattr(graphs["train"], part)())
        """,
        r"graphs\['train'\]",
        "graphs == {}",
    ),
    "a callback of an SSL context": Leak(
        """
        import ssl
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        def choose(sock, name, ctx, weights=big()): return None
        context.sni_callback = choose
        del choose
        """,
        r"context\.sni_callback",
        "isinstance(context, ssl.SSLContext)",
    ),
    "a collation of a database": Leak(
        """
        import sqlite3
        db = sqlite3.connect(":memory:")
        def register():
            table = big()
            db.create_collation("mine", lambda a, b: len(table))
        register()
        """,
        r"unregister <lambda>\(\).*perhaps to db|db \(inside sqlite3",
        "db.execute('select 1').fetchone() == (1,)",
    ),
    "what pytest's monkeypatch puts back": Leak(
        """
        import pytest
        class Engine:
            weights = big()
        patch = pytest.MonkeyPatch()
        patch.setattr(Engine, "weights", None)
        """,
        r"patch\._setattr",
        "Engine.weights is None",
    ),
    "a copy of a model beside it": Leak(
        """
        class Trainer:
            def __init__(self):
                self.rate = 0.1
                self.model = torch.nn.Linear(1024, 512, bias=False)
                self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        trainer = Trainer()
        watch(trainer.average["weight"])
        """,
        r"trainer\.average(.|\n)*trainer\.model \(.*in use",
        "trainer.rate == 0.1 and trainer.model(torch.ones(1, 1024)) is not None",
    ),
    "buffers beside all parameters of a model": Leak(
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
        for p in model.parameters(): p.main_grad = watch(torch.zeros(1 << 19))
        del p
        """,
        r"main_grad \(.*16 pieces",
        "model(torch.ones(1, 512)) is not None",
    ),
    "outputs that a block of a model has seen": Leak(
        """
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.seen = torch.nn.Linear(512, 512), []
            def forward(self, x): self.seen.append(big(2)); return self.inner(x)
        model = torch.nn.Sequential(Block(), Block())
        for _ in range(3): model(torch.ones(1, 512))
        """,
        r"model\[0\]\.seen \(list, 3 pieces\)",
        "model(torch.ones(1, 512)) is not None",
    ),
    "two graphs of a model that is gone": Leak(
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
        for p in model.parameters(): watch(p)
        first, second = model(torch.ones(64, 512)), model(torch.ones(64, 512)).sum()
        del model, p
        """,
        r"graph of (first|second) \(.*pieces\)(.|\n)*inference_mode",
    ),
    "a meter that adds losses": Leak(
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
        class Meter: total, count = 0, 0
        meter = Meter()
        for _ in range(3): meter.total = meter.total + model(watch(torch.ones(1024, 512))).sum()
        """,
        r"meter\.total \((.|\n)*model \(.*in use, held by the autograd graph of meter\.total",
        "meter.count == 0 and model(torch.ones(2, 512)) is not None",
    ),
    "a trainer whose losses have the graphs of its model": Leak(
        """
        class Trainer:
            def __init__(self):
                self.model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
                self.optimizer = torch.optim.Adam(self.model.parameters())
                self.losses, self.history = [], []
            def step(self):
                loss = self.model(torch.ones(64, 512)).square().mean()
                loss.backward()
                self.optimizer.step()
                self.losses.append(loss), self.history.append(big(8))
        trainer = Trainer()
        for _ in range(3): trainer.step()
        """,
        r"trainer\.history \(list(.|\n)*trainer\.model \(.*16 pieces\), in use, held by the autograd graph of trainer\.losses",
        "trainer.step() is None and len(trainer.losses) == 4",
    ),
    "a cache with one large entry": Leak(
        """
        import functools
        @functools.lru_cache(maxsize=None)
        def load(name): return big(16) if name == "large" else name
        for name in ("a", "large", "b"): load(name)
        """,
        "load(.|\n)*all 3 entries go too",
        "load('a') == 'a'",
    ),
    "members of an enumeration": Leak(
        """
        import enum
        class Mode(enum.Enum):
            FAST = 1
            SLOW = 2
        Mode.FAST.weights, Mode.SLOW.weights = big(), big(8)
        """,
        r"Mode\.SLOW\.weights(.|\n)*Mode\.FAST\.weights",
        "Mode(1) is Mode.FAST",
    ),
    "values of a descriptor, and the class works on": Leak(
        """
        class Cached:
            def __init__(self, mib): self.mib, self.values = mib, {}
            def __get__(self, one, cls): return self.values.setdefault(id(one), big(self.mib))
        class Model: weights, bias = Cached(8), Cached(4)
        model = Model(); model.weights, model.bias
        """,
        r"Model\.__dict__\['weights'\]\.values(.|\n)*\['bias'\]\.values",
        "model.weights is not None",
    ),
    "two leaks of a bus": Leak(
        """
        import asyncio
        class Bus:
            def __init__(self): self.queue, self.known = asyncio.Queue(), {}
        bus = Bus(); bus.queue.put_nowait(big()), bus.queue.put_nowait(big())
        bus.known["x"] = [big(2)]
        """,
        r"bus\.queue(.|\n)*bus\.known",
        "bus.queue.put_nowait(1) is None",
    ),
    "methods of views among receivers of a signal": Leak(
        """
        receivers = []
        class View:
            def __init__(self): self.frame = big(); receivers.append(self.draw)
            def draw(self): return 1
        View(), View(), receivers.append(lambda: 2)
        """,
        "receivers",
        "2 in [one() for one in receivers]",
    ),
    "a call at exit, and a list": Leak(
        """
        import atexit, functools
        atexit.register(functools.partial(print, big()))
        leftovers = [big(2)]
        """,
        "exit callback",
        "leftovers is not None",
    ),
    "a cache by id among settings": Leak(
        """
        config = {"name": "a", "best": big(), "last": big(8), "steps": 3}
        """,
        r"config\['last'\](.|\n)*config\['best'\]",
        "config['name'] == 'a' and config['steps'] == 3",
    ),
    "a result among the attributes of a model": Leak(
        """
        class Forecaster(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.cell, self.hidden = torch.nn.GRUCell(512, 32), None
            def forward(self, window):
                self.hidden = self.cell(window, self.hidden)
        model = Forecaster()
        for _ in range(3): model(watch(torch.ones(2048, 512)))
        """,
        r"model\.hidden",
        "model(torch.ones(2, 512)) is None and model.cell is not None",
    ),
    "timers with the contexts of their requests": Leak(
        """
        import asyncio, contextvars
        payload, loop = contextvars.ContextVar("payload"), asyncio.new_event_loop()
        def request(): payload.set(big()); loop.call_later(3600, print)
        for _ in range(2): contextvars.copy_context().run(request)
        """,
        "payload",
        "len(loop._scheduled) == 2",
    ),
    "tasks in a set that wait for ever": Leak(
        """
        import asyncio
        tasks, loop = set(), asyncio.new_event_loop()
        async def stream():
            cache = big()
            await asyncio.Event().wait()
        async def main():
            tasks.update(asyncio.create_task(stream()) for _ in range(2))
            await asyncio.sleep(0)
        loop.run_until_complete(main())
        """,
        "tasks",
        "all(task.cancelled() for task in tasks)",
    ),
    "frames that a tracer keeps": Leak(
        """
        import sys
        class Span: pass
        spans = []
        def detect():
            heat, span = big(), Span()
            span.frame = sys._getframe()
            spans.append(span)
        detect(), detect()
        """,
        r"spans \(list",
        "spans == []",
    ),
}

BEFORE = """
import gc, json, re, torch, lowtide
from torch.multiprocessing.reductions import StorageWeakRef
_storages = []
def watch(tensor):
    storage = tensor.untyped_storage()
    _storages.append((StorageWeakRef(storage), storage.nbytes()))
    return tensor
def big(mib=4): return watch(torch.ones(mib << 18))
def _alive(): return sum(size for storage, size in _storages if not storage.expired())
"""
FIRST = """
gc.collect()
def _said(answer): return [(one.path, one.paths, [str(cut) for cut in one.cuts]) for one in answer.held]
_said_first = _said(lowtide.why(device="cpu"))
_told = str(_answer := lowtide.why(device="cpu"))
_is_same = _said(_answer) == _said_first
_cuts, _before = _answer.plan.cuts[:1] or _answer.held[0].cuts, _alive()
# What is not watched is not counted.
_of = [one.bytes for one in _answer.held if one.cuts and one.cuts[0] is _cuts[0]] if _cuts else []
_wanted = min([*_of, *(one.freed_bytes for one in _cuts[: 0 if _of else 1]), _before])
try:
    if not _cuts: _how = "none"
    elif _cuts[0].code: _how = _cuts[0].code; exec(_how, globals())
    else: _how = str(lowtide.cut(1))
except Exception as error: _how = repr(error)
_freed = _before - _alive()
try: _works = bool(eval(WORKS))
except Exception as error: _works = repr(error)
print("RESULT", json.dumps([_told, _how, _freed >= 0.9 * _wanted and _freed > 0, _works, _is_same]))
"""
ALL = """
gc.collect()
_told = str(lowtide.why(device="cpu"))
try: _how = str(lowtide.cut("all"))
except Exception as error: _how = repr(error)
print("RESULT", json.dumps([_told, _how, _alive() == 0]))
"""


LEAKS |= {name: Leak(*row) for name, row in STRANGERS.items()}
STEP = 1 if os.environ.get("LOWTIDE_LONG") == "1" else 3
"""Every third of the strangers' programs by default, all of them in the long tests."""
ASKED = [name for name in LEAKS if name not in STRANGERS] + list(STRANGERS)[::STEP]
UNFREED = {
    "an autograd Function that keeps its two outputs on ctx: a cycle gc cannot see": "nothing frees it",
}
OPEN = {
    "a pytest plugin's excinfos, and sys.last_value of the same failure": "asked twice, the first path differs (on Python 3.11)",
    **UNFREED,
    "torch.fx: values kept in the nodes' meta and in the interpreter's env": "the module is dropped, not meta",
}
"""What is not solved, with what is wrong."""


def _asked(unsolved: dict[str, str]) -> list[object]:
    mark = pytest.mark.xfail
    return [
        pytest.param(
            name,
            marks=[mark(reason=why, strict="on Python" not in why)]
            if (why := unsolved.get(name))
            else [],
        )
        for name in ASKED
    ]


def run(leak: Leak, after: str) -> list[object]:
    """Runs a program in a process of its own, and returns what was found."""
    program = BEFORE + textwrap.dedent(leak.program) + f"WORKS = {leak.works!r}\n" + after
    told = alone.alone_with_torch(program)
    found = [line for line in told.splitlines() if line.startswith("RESULT ")]
    result: list[object] = json.loads(found[-1].removeprefix("RESULT "))
    return result


@pytest.mark.parametrize("name", _asked(OPEN))
def test_it_is_named_and_the_first_remedy_frees_and_breaks_nothing(name: str) -> None:
    told, how, is_freed, works, is_same = run(LEAKS[name], FIRST)
    assert is_same, f"asked twice, it says something else:\n{told}"
    assert re.search(LEAKS[name].names, str(told)), f"not named:\n{told}"
    assert is_freed is not LEAKS[name].by_hand, f"not freed by {how}:\n{told}"
    assert works is True, f"{works} after {how}:\n{told}"


@pytest.mark.parametrize("name", _asked(UNFREED))
def test_the_plan_frees_all(name: str) -> None:
    told, how, is_freed = run(LEAKS[name], ALL)
    assert is_freed is not LEAKS[name].by_hand, f"not freed by {how}:\n{told}"
