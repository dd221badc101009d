"""Leaking programs by writers who knew nothing of `why`: they were asked about before anything was mended.

Each row is the program, a regex for the holder as a person would name it, what has to be true afterwards, and
whether only a person can free it, as in `test_leaks`, which runs them.
"""

from __future__ import annotations

LEAKS: dict[str, tuple[str, str, str, bool]] = {
    "the meter sums losses with their graphs": (
        """
        class Center(torch.autograd.Function):
            @staticmethod
            def forward(ctx, weight, batch):
                ctx.batch = batch
                return weight * batch.mean()
            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.batch.mean(), None
        class Meter:
            def __init__(self): self.totals = {}
            def update(self, name, value): self.totals[name] = self.totals.get(name, 0.0) + value
        meter, weight = Meter(), torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        def train_step(batch):
            loss = Center.apply(weight, batch).sum()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            meter.update("batches", 1); meter.update("loss", loss)
        for _ in range(3): train_step(big())
        """,
        r"meter\.totals|meter\.__dict__|vars\(meter\)",
        'train_step(torch.ones(4)) is None and meter.totals["batches"] >= 4',
        False,
    ),
    "one pickler for the whole shard remembers every sample": (
        """
        import io, pickle
        class Compressed(io.RawIOBase):
            size = 0
            def writable(self): return True
            def write(self, data):
                self.size += len(data)
                return len(data)
        class ShardWriter:
            def __init__(self, sink):
                self.sink, self.count = sink, 0
                self.pickler = pickle.Pickler(sink, protocol=5)
            def add(self, sample):
                self.pickler.dump(sample)
                self.count += 1
        writer = ShardWriter(Compressed())
        for index in range(2): writer.add({"id": index, "image": big()})
        """,
        r"writer\.pickler|clear_memo|\.memo\b",
        'writer.add({"id": 7}) is None and writer.count >= 3 and writer.sink.size > 1000',
        False,
    ),
    "a sliced memoryview of a header keeps the shard": (
        """
        class Shards:
            def __init__(self, sources): self.sources, self._headers = sources, {}
            def read(self, name): return memoryview(self.sources[name]().numpy()).cast("B")
            def header(self, name):
                if name not in self._headers: self._headers[name] = self.read(name)[:16]
                return bytes(self._headers[name])
        shards = Shards({"train": big, "test": lambda: torch.ones(64)})
        lengths = {name: len(shards.header(name)) for name in shards.sources}
        """,
        r"shards\._headers|shards\.__dict__|vars\(shards\)",
        'len(shards.header("test")) == 16 and list(shards.sources) == ["train", "test"]',
        False,
    ),
    "the optimizer still owns the replaced head": (
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Linear(8, 8)
                self.head = torch.nn.Linear(1024, 1024, bias=False)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        def train_step():
            sum(parameter.sum() for parameter in net.parameters()).backward()
            optimizer.step()
            optimizer.zero_grad()
        train_step()
        watch(net.head.weight)
        watch(optimizer.state[net.head.weight]["exp_avg"])
        net.head = torch.nn.Linear(1024, 2, bias=False)
        optimizer.add_param_group({"params": list(net.head.parameters())})
        train_step()
        """,
        r"param_groups(.|\n)*state|state(.|\n)*param_groups",
        'train_step() is None and optimizer.state[net.body.weight]["step"] >= 3 and len(optimizer.param_groups) == 2 and optimizer.param_groups[1]["params"][0] is net.head.weight',
        False,
    ),
    "a gradient monitor's hook on the parameter outlives it": (
        """
        class DriftMonitor:
            def __init__(self, parameter, reference):
                self.drift = []
                def compare(p):
                    self.drift.append(float(p.grad.mean() - reference[0]))
                parameter.register_post_accumulate_grad_hook(compare)
        model, clipped = torch.nn.Linear(4, 4), []
        def clip(p):
            p.grad.clamp_(-1, 1)
            clipped.append(tuple(p.shape))
        model.weight.register_post_accumulate_grad_hook(clip)
        def train_step():
            model(torch.ones(2, 4)).sum().backward()
            return len(clipped)
        def warm_up(steps):
            monitor = DriftMonitor(model.weight, big())
            for _ in range(steps): train_step()
            return sum(monitor.drift)
        warm_up(3)
        """,
        r"weight\._post_accumulate_grad_hooks|_parameters\[.weight.\]\._post_accumulate_grad_hooks|post_accumulate_grad_hook",
        "train_step() == len(clipped) >= 4",
        False,
    ),
    "deepcopy's memo as a default argument": (
        """
        import copy
        def snapshot(module, memo={}):
            return copy.deepcopy(module, memo)
        class Ema:
            def __init__(self, model): self.shadow = snapshot(model)
            def update(self, model, decay=0.9):
                for old, new in zip(self.shadow.parameters(), model.parameters()):
                    old.data.lerp_(new.data, 1 - decay)
        def evaluate(size):
            model = torch.nn.Linear(size, size, bias=False)
            ema = Ema(model)
            ema.update(model)
            watch(model.weight), watch(ema.shadow.weight)
            return float(ema.shadow.weight.detach().abs().mean())
        scores = [evaluate(1024) for _ in range(2)]
        """,
        r"snapshot\.__defaults__|snapshot\.__code__|\bmemo\b",
        "snapshot(torch.nn.Linear(2, 3)).weight.shape == (3, 2) and len(scores) == 2",
        False,
    ),
    "the forgotten half of itertools.tee": (
        """
        import itertools
        class Pipeline:
            def __init__(self, source):
                self.batches, self.preview = itertools.tee(source)
                self.width = next(self.preview).shape[-1]
            def epoch(self, steps):
                return sum(1 for batch in itertools.islice(self.batches, steps) if batch.shape[-1])
        def stream(large):
            for _ in range(large): yield big()
            while True: yield torch.ones(1, 8)
        pipeline = Pipeline(stream(3))
        pipeline.epoch(100)
        """,
        r"pipeline\.preview|pipeline\.__dict__|vars\(pipeline\)",
        "pipeline.epoch(5) == 5 and pipeline.width == 1 << 20",
        False,
    ),
    "log records wait in a MemoryHandler": (
        """
        import logging, logging.handlers
        def configure(name):
            log = logging.getLogger(name)
            log.setLevel(logging.DEBUG)
            log.propagate = False
            log.addHandler(logging.handlers.MemoryHandler(5000, flushLevel=logging.CRITICAL, target=logging.NullHandler()))
        configure("evaluation.batches")
        def evaluate(batch):
            log = logging.getLogger("evaluation.batches")
            log.debug("mean %.3f of %r", 1.0, batch)
            return tuple(batch.shape)
        shapes = {evaluate(big()) for _ in range(3)}
        """,
        r"handlers\[0\]|\.buffer|evaluation\.batches|_handlerList|_handlers",
        'len(logging.getLogger("evaluation.batches").handlers) == 1 and evaluate(torch.ones(2)) == (2,) and len(shapes) == 1',
        False,
    ),
    "notebook: the output history and a cell's event callback": (
        '''
        import contextlib, io
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.user_ns["big"] = big
        shell.user_ns["ticks"] = ticks = []
        def cell(source):
            with contextlib.redirect_stdout(io.StringIO()):
                return shell.run_cell(source, store_history=True).success
        cell("get_ipython().events.register('post_run_cell', lambda result: ticks.append(result.success))")
        cell("weights = big()" + chr(10) + "weights")
        cell("""
        class LiveImage:
            def __init__(self, shell):
                self.frame, self.draws = big(), 0
                shell.events.register('post_run_cell', self.draw)
            def draw(self, result): self.draws += 1
        live = LiveImage(get_ipython())""")
        cell("del weights, live; epochs = 3")
        for source in ("epochs", "epochs * 2", "ticks[:1]"): cell(source)
        ''',
        r"(Out\b|_oh|\b_\d\b|\b__?_?\b|user_ns|outputs?|displayhook|del_var|xdel|reset)(.|\n)*(events|callbacks)|(events|callbacks)(.|\n)*(Out\b|_oh|\b_\d\b|\b__?_?\b|user_ns|outputs?|displayhook|del_var|xdel|reset)",
        'cell("epochs += 0") and shell.user_ns["epochs"] == 3 and ticks and len(ticks) >= 8',
        False,
    ),
    "server: a timer's context copy keeps the request's payload": (
        """
        import asyncio, contextvars
        request_body = contextvars.ContextVar("request_body", default=None)
        class Server:
            def __init__(self): self.loop, self.expired = asyncio.new_event_loop(), []
            async def predict(self): return int(request_body.get().numel() > 0)
            async def handle(self, session, body):
                request_body.set(body)
                asyncio.get_running_loop().call_later(3600, self.expired.append, session)
                return await self.predict()
            def serve(self, session, body):
                return self.loop.run_until_complete(self.handle(session, body))
        server = Server()
        server.serve("first", big())
        """,
        r"server\.loop|_scheduled|_context|request_body|call_later",
        'server.serve("second", torch.ones(1)) == 1 and not server.loop.is_closed() and server.expired == []',
        False,
    ),
    "server: a handler waits for an event that nobody sets": (
        """
        import asyncio
        class Batcher:
            def __init__(self): self.loop, self.ready, self.tasks = asyncio.new_event_loop(), {}, set()
            async def infer(self, client, features):
                await self.ready.setdefault(client, asyncio.Event()).wait()
                return float(features.mean())
            async def accept(self, client, features):
                task = asyncio.create_task(self.infer(client, features), name=client)
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                await asyncio.sleep(0)
                return client
            def request(self, client, features): return self.loop.run_until_complete(self.accept(client, features))
        batcher = Batcher()
        batcher.loop.set_exception_handler(lambda loop, context: None)
        batcher.request("disconnected", big())
        batcher.request("connected", torch.ones(4))
        """,
        r"batcher\.ready|batcher\.tasks|disconnected|all_tasks|infer\b",
        'any(task.get_name() == "connected" and not task.done() for task in batcher.tasks) and "connected" in batcher.ready and not batcher.loop.is_closed() and batcher.request("next", torch.ones(2)) == "next"',
        False,
    ),
    "server: thread-local scratch in an idle pool thread": (
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        class Scratch(threading.local):
            buffer = None
        scratch = Scratch()
        def app(environ, start_response):
            size = int(environ["QUERY_STRING"] or 0)
            if size and (scratch.buffer is None or scratch.buffer.nbytes < size << 20):
                scratch.buffer = big(size)
            start_response("200 OK", [])
            return [b"%d" % size]
        pool = ThreadPoolExecutor(2)
        def get(query):
            return pool.submit(lambda: b"".join(app({"QUERY_STRING": query}, lambda status, headers: None))).result()
        get("6")
        """,
        r"scratch|Scratch|threading\.local|_local",
        'get("") == b"0" and not pool._shutdown',
        False,
    ),
    "tests: a class-wide mock records every call's arguments": (
        """
        import unittest
        from unittest import mock
        class TrainerTests(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.encoder = mock.Mock(name="encoder")
                cls.encoder.forward.side_effect = lambda batch, scale=1: batch.mean() * scale
            def test_mean(self):
                self.assertEqual(float(self.encoder.forward(big(), scale=2)), 2.0)
            def test_shape(self):
                self.assertEqual(self.encoder.forward(torch.zeros(2)).ndim, 0)
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(TrainerTests).run(result)
        """,
        r"TrainerTests\.encoder|reset_mock|mock_calls|call_args",
        "float(TrainerTests.encoder.forward(torch.ones(3))) == 1.0 and result.testsRun == 2 and result.wasSuccessful()",
        False,
    ),
    "tests: a pytest plugin keeps failures and warnings' sources": (
        """
        import pytest, warnings
        class Summary:
            def __init__(self): self.failed, self.warned, self.count = {}, [], 0
            def pytest_runtest_makereport(self, item, call):
                self.count += 1
                if call.excinfo: self.failed[item] = call.excinfo
            def pytest_warning_recorded(self, warning_message, nodeid): self.warned.append(warning_message)
        plugin = Summary()
        def test_train():
            batch = big()
            assert batch.sum() < 0
        def test_close():
            warnings.warn("unclosed staging area", ResourceWarning, source=big())
        def run(name, test):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                plugin.pytest_runtest_makereport(name, pytest.CallInfo.from_call(test, "call"))
            for message in caught: plugin.pytest_warning_recorded(message, name)
        run("train", test_train), run("close", test_close)
        """,
        r"failed(.|\n)*warned|warned(.|\n)*failed",
        'run("again", lambda: None) is None and plugin.count >= 3',
        False,
    ),
    "signal handlers chain to finished trainers": (
        """
        import signal
        class Trainer:
            def __init__(self, name, weights):
                self.name, self.weights, self.stopped = name, weights, False
                self.previous = signal.signal(signal.SIGUSR1, self.on_preempt)
            def on_preempt(self, signum, frame):
                self.stopped = True
                if callable(self.previous): self.previous(signum, frame)
            def fit(self): return float(self.weights.mean())
        reloads = []
        signal.signal(signal.SIGUSR2, lambda signum, frame: reloads.append(signum))
        scores = {name: Trainer(name, big()).fit() for name in ("small", "large")}
        """,
        r"SIGUSR1|signal\.signal\(|getsignal",
        "signal.raise_signal(signal.SIGUSR2) is None and len(reloads) >= 1 and len(scores) == 2",
        False,
    ),
    "sqlite's trace callback closes over a reference": (
        """
        import sqlite3
        class RunStore:
            def __init__(self):
                self.db = sqlite3.connect(":memory:", isolation_level=None)
                self.db.create_function("half", 1, lambda value: value / 2)
                self.db.execute("create table metrics(name, value)")
            def log(self, name, value):
                self.db.execute("insert into metrics values(?, half(?))", (name, value))
                return self.db.execute("select count(*) from metrics").fetchone()[0]
            def audit(self, reference):
                statements = {}
                def trace(statement): statements[statement] = statements.get(statement, 0) + reference.ndim
                self.db.set_trace_callback(trace)
                return self.log("audited", float(reference.mean()))
        store = RunStore()
        store.audit(big())
        """,
        r"set_trace_callback|store\.db\b",
        'store.log("loss", 0.5) >= 2 and store.db.execute("select half(4)").fetchone() == (2.0,)',
        False,
    ),
    "saved-tensor hooks left entered by a failed step": (
        """
        weight, skipped = torch.nn.Parameter(torch.ones(1)), []
        class Offload(torch.autograd.graph.saved_tensors_hooks):
            def __init__(self):
                self.store = {}
                super().__init__(self.pack, lambda key: self.store.pop(key))
            def pack(self, tensor):
                self.store[len(self.store)] = tensor.detach()
                return len(self.store) - 1
        def train_step(batch):
            offload = Offload()
            offload.__enter__()
            loss = (weight * batch).mean()
            if not torch.isfinite(loss): raise FloatingPointError("loss is not finite")
            loss.backward()
            offload.__exit__(None, None, None)
        try: train_step(big().fill_(float("nan")))
        except FloatingPointError as error: skipped.append(str(error))
        """,
        "saved_tensors_hooks|saved_tensors_default_hooks|Offload|__exit__",
        "train_step(torch.ones(3)) is None and float(weight.grad) > 0 and len(skipped) == 1",
        False,
    ),
    "weakref.finalize with a bound method of its own object": (
        """
        import tempfile, weakref
        class Prefetcher:
            def __init__(self, batches):
                self.staging, self.closed = [next(batches) for _ in range(2)], False
                weakref.finalize(self, self.close)
            def close(self):
                self.closed = True
                self.staging.clear()
            def __iter__(self): return (float(batch.mean()) for batch in self.staging)
        work = tempfile.TemporaryDirectory()
        def epoch(source):
            return sum(Prefetcher(source))
        total = epoch(big() for _ in range(5))
        """,
        "finalize|_registry",
        "work._finalizer.alive and epoch(iter([torch.ones(1), torch.ones(1)])) == 2.0 and total == 2.0",
        False,
    ),
    "a lazy attribute's weak dictionary whose values hold the keys": (
        """
        import functools, weakref
        class lazy:
            def __init__(self, build): self.build, self.values = build, weakref.WeakKeyDictionary()
            def __get__(self, owner, kind=None):
                if owner is None: return self
                if owner not in self.values: self.values[owner] = self.build(owner)
                return self.values[owner]
        class Dataset:
            def __init__(self, rows): self.rows = rows
            def mean(self, scale): return float(self.rows.mean()) * scale
            @lazy
            def normalizer(self): return functools.partial(self.mean, 2)
        def evaluate(dataset): return dataset.normalizer()
        held_out = Dataset(torch.ones(8))
        scores = [evaluate(held_out), evaluate(Dataset(big()))]
        """,
        r"Dataset\.normalizer|\.values\b|WeakKeyDictionary|Dataset\.__dict__|vars\(Dataset\)",
        "held_out.normalizer() == 2.0 and evaluate(held_out) == 2.0 and scores == [2.0, 2.0]",
        False,
    ),
    "an evaluator's exit stack collects every staged batch": (
        """
        import contextlib
        @contextlib.contextmanager
        def staged(batch, log):
            log.append("in")
            try: yield batch
            finally: log.append("out")
        class Evaluator:
            def __init__(self):
                self.stack, self.log, self.open = contextlib.ExitStack(), [], True
                self.stack.callback(setattr, self, "open", False)
            def score(self, batch):
                return float(self.stack.enter_context(staged(batch, self.log)).mean())
        evaluator = Evaluator()
        scores = [evaluator.score(big()) for _ in range(2)]
        """,
        r"evaluator\.stack|_exit_callbacks|pop_all",
        "evaluator.open and evaluator.score(torch.ones(2)) == 1.0 and evaluator.stack._exit_callbacks[0][1].__wrapped__ is setattr",
        False,
    ),
    "asyncio: background tasks that wait for an event which never comes": (
        """
        import asyncio
        class Gateway:
            def __init__(self):
                self.background, self.closed = set(), asyncio.Event()
            async def push_metrics(self, embedding):
                await self.closed.wait()
                return embedding.sum()
            async def handle(self, size):
                if size:
                    task = asyncio.create_task(self.push_metrics(big(size)))
                    self.background.add(task)
                    task.add_done_callback(self.background.discard)
                return 200
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)
        gateway = Gateway()
        assert loop.run_until_complete(gateway.handle(4)) == 200
        assert loop.run_until_complete(gateway.handle(2)) == 200
        """,
        r"background|_waiters|closed\.set|all_tasks|push_metrics|\.cancel\(",
        "loop.run_until_complete(gateway.handle(0)) == 200",
        False,
    ),
    "ASGI: in-flight table not emptied on error, and the context of the kept exception": (
        """
        import asyncio
        class Tracing:
            def __init__(self, app): self.app, self.inflight, self.served = app, {}, 0
            async def __call__(self, scope, receive, send):
                self.inflight[scope["id"]] = scope
                await self.app(scope, receive, send)
                del self.inflight[scope["id"]]
                self.served += 1
        class Breaker: last_error = None
        async def predict(scope, receive, send):
            if scope["id"] == "ok": return
            activations, scope["state"] = big(4), {"features": big(8)}
            try: return {}["model"]
            except KeyError: raise RuntimeError("the model is not loaded")
        app = Tracing(predict)
        async def serve(name):
            try: await app({"id": name}, None, None)
            except RuntimeError as error: Breaker.last_error = error.with_traceback(None)
        asyncio.run(serve("r1"))
        """,
        r"inflight(.|\n)*last_error|last_error(.|\n)*inflight",
        'asyncio.run(serve("ok")) is None and app.served > 0',
        False,
    ),
    "thread pool: thread-local scratch of an idle worker": (
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        scratch = threading.local()
        class Resizer:
            def __init__(self): self.pool = ThreadPoolExecutor(1, thread_name_prefix="resize")
            def work(self, size):
                if size and not hasattr(scratch, "canvas"):
                    scratch.canvas = big(size)
                return size * 2
            def __call__(self, size): return self.pool.submit(self.work, size).result(5)
        resizer = Resizer()
        assert resizer(4) == 8
        """,
        "scratch|canvas",
        "resizer(0) == 0",
        False,
    ),
    "notebook: a displayed tensor stays in Out and _ after del": (
        """
        import contextlib, io
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.push({"big": big, "torch": torch})
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell("6 * 7", store_history=True)
            shell.run_cell("features = big(4)", store_history=True)
            shell.run_cell("features", store_history=True)
            shell.run_cell("del features", store_history=True)
        """,
        r"\bOut\b|_oh\b|\b_3\b|displayhook|user_ns|output_hist",
        'shell.user_ns["Out"].get(1) == 42 and shell.run_cell("seven = 7").success and shell.user_ns["seven"] == 7',
        False,
    ),
    "notebook: the traceback of a failed cell": (
        '''
        import contextlib, io
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.push({"big": big})
        cell = """
        def evaluate(size):
            logits = big(size)
            return logits @ head
        evaluate(4)
        """
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell(cell)
            shell.run_cell("head = None")
        ''',
        "last_value|last_traceback|last_exc|InteractiveTB",
        'shell.run_cell("pass").success and callable(shell.user_ns["evaluate"])',
        False,
    ),
    "notebook: a callback of post_run_cell that a deleted monitor left behind": (
        '''
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.push({"big": big})
        shell.run_cell("""
        cells = []
        def count(result): cells.append(result.success)
        get_ipython().events.register("post_run_cell", count)
        class Monitor:
            def __init__(self, size): self.baseline, self.calls = big(size), 0
            def after(self, result): self.calls += 1
        monitor = Monitor(4)
        get_ipython().events.register("post_run_cell", monitor.after)
        """)
        shell.run_cell("del monitor")
        ''',
        r"events\.callbacks|post_run_cell|unregister",
        'shell.user_ns["cells"].clear() is None and shell.run_cell("one = 1").success and shell.user_ns["cells"] == [True]',
        False,
    ),
    "unittest: a fixture on the class, and the batch of a failed test in the result": (
        """
        import unittest
        class TestEncoder(unittest.TestCase):
            @classmethod
            def setUpClass(cls): cls.corpus = big(8)
            def setUp(self): self.batch = big(4)
            def test_shape(self): self.assertEqual(tuple(self.batch.shape), (4, 4))
            def test_dtype(self): self.assertTrue(self.batch.is_floating_point())
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(TestEncoder)
        result = suite.run(unittest.TestResult())
        assert len(result.failures) == 1
        """,
        r"corpus(.|\n)*(result\.failures|\.batch)|(result\.failures|\.batch)(.|\n)*corpus",
        'result.testsRun == 2 and TestEncoder("test_dtype").run().wasSuccessful()',
        False,
    ),
    "pytest: a plugin that keeps the ExceptionInfo of failed calls": (
        """
        import pytest
        class Flaky:
            def __init__(self): self.seen, self._retry = 0, []
            @pytest.hookimpl(trylast=True)
            def pytest_exception_interact(self, node, call, report):
                self.seen += 1
                self._retry.append(call.excinfo)
        manager = pytest.PytestPluginManager()
        manager.register(Flaky(), "flaky")
        def test_loss():
            logits = big(4)
            assert float(logits.mean()) == 0.0
        call = pytest.CallInfo.from_call(test_loss, "call")
        manager.hook.pytest_exception_interact(node=None, call=call, report=None)
        del call
        """,
        "_retry|flaky",
        'manager.has_plugin("flaky") and manager.get_plugin("flaky").seen == 1',
        False,
    ),
    "plugins: the replaced version of a plugin lives in its package and in the registry": (
        r"""
        import sys, types
        plugins = sys.modules["plugins"] = types.ModuleType("plugins")
        class Plugin:
            registry = {}
            def __init_subclass__(cls): Plugin.registry[cls.__name__, cls.version] = cls
        def load(version, kernel):
            module = types.ModuleType(f"plugins.v{version}")
            vars(module).update(Plugin=Plugin, kernel=kernel)
            exec(f"class Resize(Plugin):\n version = {version}\n weight = kernel\n def run(self): return self.version\ndel kernel", vars(module))
            sys.modules[module.__name__] = module
            setattr(plugins, f"v{version}", module)
        load(1, big(4))
        del sys.modules["plugins.v1"]
        load(2, None)
        """,
        r"plugins\.v1|plugins.*v1|Plugin\.registry|Resize\.weight",
        'Plugin.registry["Resize", 2]().run() == 2 and sys.modules["plugins.v2"] is plugins.v2',
        False,
    ),
    "asyncio: a timer of an hour that copied the context of the request": (
        """
        import asyncio, contextvars
        request_batch = contextvars.ContextVar("request_batch")
        tokens = set()
        async def handle(token, size):
            request_batch.set(big(size))
            tokens.add(token)
            asyncio.get_running_loop().call_later(3600, tokens.discard, token)
            return token
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(handle("a", 4)) == "a"
        """,
        "_scheduled|request_batch|call_later|TimerHandle|_context",
        'loop.run_until_complete(asyncio.sleep(0, 5)) == 5 and tokens == {"a"}',
        False,
    ),
    "worker process: a signal handler and an atexit callback of a finished job": (
        """
        import atexit, signal
        class Job:
            def __init__(self, size): self.weights, self.saved = big(size), 0
            def checkpoint(self, number, frame): self.saved += 1
            def run(self): return "done"
        def flush(cache): return cache is None
        def start(size):
            job = Job(size)
            signal.signal(signal.SIGUSR1, job.checkpoint)
            atexit.register(flush, big(size))
            return job.run()
        assert start(4) == "done"
        """,
        r"(signal|SIGUSR1)(.|\n)*(atexit|flush)|(atexit|flush)(.|\n)*(signal|SIGUSR1)",
        "flush(None) and atexit._ncallbacks() > 0 and Job.run(None) == 'done'",
        False,
    ),
    "server thread: the frame of a stream that waits for clients which have gone": (
        """
        import select, threading
        def stream(size, ready):
            frames = big(size)
            clients = []
            ready.set()
            while True:
                readable, _, _ = select.select(clients, [], [])
                for client in readable: client.sendall(bytes(frames[:16].numpy()))
        def serve(size):
            ready = threading.Event()
            threading.Thread(target=stream, args=(size, ready), name="stream-7", daemon=True).start()
            return ready.wait(5)
        assert serve(4)
        """,
        "stream|frames",
        'any(thread.name == "stream-7" for thread in threading.enumerate())',
        True,
    ),
    "weakref.finalize with a bound method of the object it should outlive": (
        """
        import weakref
        class Session:
            opened = 0
            def __init__(self, user, size):
                self.user, self.kv_cache = user, big(size)
                Session.opened += 1
                weakref.finalize(self, self.close)
            def close(self): Session.opened -= 1
        class Pool: pass
        pool = Pool()
        closer = weakref.finalize(pool, int)
        def chat(user, size): return Session(user, size).user.upper()
        assert chat("ada", 4) == "ADA"
        """,
        "finalize|_registry",
        "closer.alive and chat.__name__ == 'chat'",
        False,
    ),
    "web routes: an lru_cache in the closure of a decorator": (
        """
        import functools
        ROUTES = {}
        def route(path, cache=64):
            def register(function):
                cached = functools.lru_cache(maxsize=cache)(function)
                def endpoint(query): return {"tokens": cached(query)[0]}
                ROUTES[path] = endpoint
                return function
            return register
        @route("/embed")
        def embed(query): return len(query), big(2) if query else None
        @route("/health")
        def health(query): return "ok", None
        assert [ROUTES["/embed"](query)["tokens"] for query in ("cat", "dogs")] == [3, 4]
        """,
        r"ROUTES\[|cached|cache_clear|endpoint",
        'ROUTES["/embed"]("") == {"tokens": 0} and ROUTES["/health"]("") == {"tokens": "ok"} and embed("")[0] == 0',
        False,
    ),
    "sqlite: an SQL function that closes over the vector of a query": (
        """
        import sqlite3
        connection = sqlite3.connect(":memory:")
        connection.execute("create table items (weight real)")
        connection.executemany("insert into items values (?)", [(1.0,), (2.0,), (3.0,)])
        def search(vector):
            def score(weight): return weight * float(vector[0])
            connection.create_function("score", 1, score)
            return connection.execute("select max(score(weight)) from items").fetchone()[0]
        assert search(big(4)) == 3.0
        """,
        "connection|create_function|score",
        'connection.execute("select count(*) from items").fetchone() == (3,) and callable(search)',
        False,
    ),
    "threads: a crash kept by threading.excepthook, and jobs that nobody takes any more": (
        """
        import queue, threading
        jobs = queue.SimpleQueue()
        def install(): threading.excepthook = [].append
        def worker():
            while True:
                job = jobs.get()
                if job is None: return
                raise ValueError(f"bad image of {job.numel()} pixels")
        def serve(sizes):
            thread = threading.Thread(target=worker, name="decoder")
            thread.start()
            for size in sizes: jobs.put(big(size))
            thread.join(5)
        install()
        serve([4, 8])
        """,
        r"excepthook(.|\n)*jobs|jobs(.|\n)*excepthook",
        "jobs.put(None) is None and callable(threading.excepthook)",
        False,
    ),
    "websocket hub: a header as memoryview of its frame, and a token stream never closed": (
        """
        class Connection:
            def __init__(self, peer): self.peer, self.header = peer, b""
        def tokens(logits):
            for position in range(100):
                yield int(logits[position])
        class Hub:
            connections, streams = {}, {}
            def accept(self, peer, size):
                connection = self.connections[peer] = Connection(peer)
                connection.header = memoryview(big(size).numpy())[:2]
                self.streams[peer] = tokens(big(2 * size))
                return next(self.streams[peer])
            def hang_up(self, peer): self.connections[peer].peer += " (gone)"
        hub = Hub()
        assert hub.accept("10.0.0.1", 4) == 1
        hub.hang_up("10.0.0.1")
        """,
        r"(header|connections)(.|\n)*streams|streams(.|\n)*(header|connections)",
        'hub.hang_up.__name__ == "hang_up" and hub.connections["10.0.0.1"].peer == "10.0.0.1 (gone)"',
        False,
    ),
    "test suite: a patch started and never stopped, whose mock records its calls": (
        """
        from unittest import mock
        class Client:
            def send(self, payload, retry): return "sent"
        class Service:
            def __init__(self): self.client = Client()
            def predict(self, payload): return self.client.send(payload, retry=3)
        class TestService:
            def setup_method(self):
                mock.patch.object(Client, "send", return_value="ok").start()
            def test_predict(self):
                assert Service().predict({"pixels": big(4)}) == "ok"
        case = TestService()
        case.setup_method()
        case.test_predict()
        """,
        r"Client\.send|call_args|mock_calls|reset_mock|stopall|_active_patches",
        'Service().predict(None) in ("ok", "sent")',
        False,
    ),
    "event loop: the reader of a closed socket is still in the selector": (
        """
        import asyncio, socket
        class Upload:
            def __init__(self, size): self.buffer, self.received = big(size), 0
            def readable(self, sock): self.received += len(sock.recv(64))
        async def accept(size):
            server, client = socket.socketpair()
            server.setblocking(False)
            upload = Upload(size)
            asyncio.get_running_loop().add_reader(server, upload.readable, server)
            client.sendall(b"pixels")
            await asyncio.sleep(0.01)
            client.close(), server.close()
            return upload.received
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(accept(4)) == 6
        """,
        "_selector|remove_reader|add_reader|get_map|_fd_to_key",
        "loop.run_until_complete(asyncio.sleep(0, 5)) == 5 and loop._ssock.fileno() in loop._selector.get_map()",
        False,
    ),
    "app lifespan: what belongs to a request is put on the ExitStack of the app": (
        """
        import contextlib
        class Database:
            opened = False
            def __enter__(self): self.opened = True; return self
            def __exit__(self, *exc): self.opened = False
        class App:
            def __init__(self):
                self.lifespan = contextlib.ExitStack()
                self.database = self.lifespan.enter_context(Database())
            def release(self, staging): return staging.numel()
            def __call__(self, environ, start_response):
                self.lifespan.callback(self.release, staging=big(environ["size"]))
                return [b"200"]
        app = App()
        assert app({"size": 4}, None) == [b"200"]
        assert app({"size": 2}, None) == [b"200"]
        """,
        "lifespan",
        'app.database.opened and any(getattr(c, "__self__", None) is app.database for _, c in app.lifespan._exit_callbacks)',
        False,
    ),
    "a descriptor's dictionary of values by id(instance)": (
        """
        class PerInstance:
            def __init__(self, build):
                self.build, self.values = build, {}
            def __set_name__(self, owner, name):
                self.name = name
            def __get__(self, instance, owner=None):
                if instance is None:
                    return self
                if id(instance) not in self.values:
                    self.values[id(instance)] = self.build(instance)
                return self.values[id(instance)]
        class Attention:
            def __init__(self, length):
                self.length = length
            @PerInstance
            def mask(self):
                return big(self.length)
        def forward(length):
            return Attention(length).mask.numel()
        assert [forward(length) for length in (2, 3)]
        """,
        r"Attention\.mask|Attention\.__dict__|vars\(Attention\)|mask\.values",
        "Attention(1).length == 1 and Attention.mask.name == 'mask' and Attention.mask.build(Attention(1)).numel() == 1 << 18",
        False,
    ),
    "a metaclass's pool of flyweights, one of which is still needed": (
        """
        class Flyweight(type):
            _pool = {}
            def __call__(cls, *arguments):
                key = (cls.__name__, *arguments)
                if key not in Flyweight._pool:
                    Flyweight._pool[key] = super().__call__(*arguments)
                return Flyweight._pool[key]
        class Vocabulary(metaclass=Flyweight):
            def __init__(self, language):
                self.words = {language + str(number): number for number in range(9)}
        class PositionTable(metaclass=Flyweight):
            def __init__(self, length):
                self.angles = big(length)
        vocabulary = Vocabulary("en")
        def encode(length):
            return Vocabulary("en").words["en3"] + PositionTable(length).angles.shape[0]
        assert all(encode(length) for length in (3, 5))
        """,
        r"_pool|PositionTable\(\s*[35]\s*\)",
        "Vocabulary('en') is vocabulary and vocabulary.words['en3'] == 3",
        False,
    ),
    "implementations registered with functools.singledispatch for classes made on the fly": (
        """
        from functools import singledispatch
        @singledispatch
        def collate(sample):
            return ("any", sample)
        @collate.register
        def collate_int(sample: int):
            return ("int", sample)
        def install(run):
            Sample = type(f"Sample{run}", (), {"run": run})
            table = big(4 + run)
            collate.register(Sample, lambda sample: ("sample", table[: sample.run].sum().item()))
            return collate(Sample())
        assert [install(run)[0] for run in range(2)] == ["sample"] * 2
        """,
        r"collate\.(registry|register|dispatch|_clear_cache)|collate",
        "collate(3) == ('int', 3) and collate('x') == ('any', 'x')",
        False,
    ),
    "a WeakKeyDictionary whose values point back at their keys": (
        """
        import weakref
        class Batch:
            def __init__(self, data):
                self.data = data
        class Stats:
            shared = weakref.WeakKeyDictionary()
            def __init__(self, batch):
                self.batch, self.rows = batch, len(batch.data)
            @classmethod
            def of(cls, batch):
                if batch not in cls.shared:
                    cls.shared[batch] = cls(batch)
                return cls.shared[batch]
        validation = Batch(torch.zeros(4))
        assert Stats.of(validation).rows == 4
        def train_step():
            return Stats.of(Batch(big(3))).rows
        assert [train_step() for _ in range(3)]
        """,
        r"Stats\.shared|Stats\.of",
        "Stats.of(validation).rows == 4 and validation.data.sum() == 0",
        False,
    ),
    "weakref.finalize(self, self.close): the bound method keeps what it waits for": (
        """
        import weakref
        closed = []
        class Server:
            pass
        server = Server()
        goodbye = weakref.finalize(server, closed.append, "server")
        class SharedBlock:
            def __init__(self, name):
                self.name, self.block = name, big(6)
                self.finalizer = weakref.finalize(self, self.close)
                self.finalizer.atexit = False
            def close(self):
                closed.append(self.name)
        def send(name):
            return SharedBlock(name).block.numel()
        assert send("a") == send("b")
        """,
        "finalize|_registry|SharedBlock",
        "goodbye.alive and 'server' not in closed",
        False,
    ),
    "typing's caches: List[a local class] outlives the function": (
        """
        import typing
        def build_reader(rows):
            class Row:
                defaults = big(rows)
                def __init__(self, number):
                    self.value = float(Row.defaults.flatten()[number])
            def read(numbers: typing.List[Row]) -> typing.Dict[str, Row]:
                return {str(number): Row(number) for number in numbers}
            return read([0, 1])["1"].value
        readings = [build_reader(rows) for rows in (2, 4)]
        """,
        "typing|_cleanups|cache_clear",
        "readings == [1.0, 1.0] and typing.List[int] == typing.List[int]",
        False,
    ),
    "torch.distributions: the registry of KL functions and its memo": (
        """
        from torch.distributions import Distribution, Normal, kl, kl_divergence, register_kl
        def experiment(mib):
            samples = big(mib)
            class Empirical(Distribution):
                def __init__(self):
                    super().__init__(validate_args=False)
            @register_kl(Empirical, Empirical)
            def kl_empirical(p, q):
                return samples.mean()
            return float(kl_divergence(Empirical(), Empirical()))
        scores = [experiment(mib) for mib in (4, 6)]
        """,
        r"_KL_REGISTRY(.|\n)*_KL_MEMOIZE|_KL_MEMOIZE(.|\n)*_KL_REGISTRY",
        "scores == [1.0, 1.0] and float(kl_divergence(Normal(0., 1.), Normal(0., 1.))) == 0",
        False,
    ),
    "the callback left in numpy.seterrcall": (
        """
        import numpy
        def audit(weights):
            seen = []
            def on_error(kind, flag):
                seen.append((kind, flag, float(weights[0])))
            numpy.seterrcall(on_error)
            before = numpy.seterr(divide="call")
            numpy.ones(3) / numpy.zeros(3)
            numpy.seterr(**before)
            return len(seen)
        assert audit(big(7)) == 1
        """,
        "seterrcall|geterrcall|on_error",
        "numpy.geterr()['divide'] == 'warn' and numpy.ones(3).sum() == 3",
        False,
    ),
    "the metadata of a numpy dtype": (
        """
        import numpy
        class Columns:
            def __init__(self):
                self.by_name = {}
            def add(self, name, tensor, unit):
                kind = numpy.dtype("f4", metadata={"unit": unit, "source": tensor})
                self.by_name[name] = numpy.array(tensor[:4].tolist(), dtype=kind)
        columns = Columns()
        columns.add("depth", big(8), "m")
        columns.add("range", torch.zeros(4), "km")
        """,
        r"metadata|columns\.by_name|\.dtype",
        "columns.by_name['depth'].sum() == 4 and columns.by_name['range'].dtype.metadata['unit'] == 'km'",
        False,
    ),
    "a function defined on an sqlite connection": (
        """
        import sqlite3
        class RunStore:
            def __init__(self):
                self.db = sqlite3.connect(":memory:")
                self.db.execute("create table runs (id integer, score real)")
                self.db.executemany("insert into runs values (?, ?)", [(1, 5.0), (2, 2.0)])
            def nearest(self, anchors):
                def distance(score):
                    return abs(score - float(anchors.flatten()[int(score)]))
                self.db.create_function("distance", 1, distance)
                return self.db.execute("select id from runs order by distance(score)").fetchone()[0]
        store = RunStore()
        assert store.nearest(big(8)) == 2
        """,
        r"store\.db|create_function",
        "store.db.execute('select count(*) from runs').fetchone() == (2,)",
        False,
    ),
    "the memo of a pickle.Pickler used for many records": (
        """
        import os, pickle
        class Spool:
            def __init__(self, path):
                self.file = open(path, "wb")
                self.pickler = pickle.Pickler(self.file, 5)
                self.records = 0
            def write(self, record):
                self.pickler.dump(record)
                self.records += 1
                return self.records
        spool = Spool(os.devnull)
        for step in range(3):
            spool.write({"step": step, "logits": big(2)})
        """,
        r"memo|spool\.pickler",
        "spool.write({'step': 9}) >= 4 and not spool.file.closed",
        False,
    ),
    "a pytest plugin's excinfos, and sys.last_value of the same failure": (
        r"""
        import os, sys, tempfile, pytest
        class Flaky:
            def __init__(self):
                self.names, self.errors = [], []
            @pytest.fixture
            def batch(self):
                return big(5)
            def pytest_runtest_makereport(self, item, call):
                if call.excinfo is not None:
                    self.names.append(item.name)
                    self.errors.append(call.excinfo)
        flaky = Flaky()
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "test_shapes.py"), "w") as file:
                file.write("def test_shape(batch):\n    assert batch.shape == (3,)\n")
            code = pytest.main(["-p", "no:terminal", "-p", "no:cacheprovider", folder], plugins=[flaky])
        """,
        r"errors(.|\n)*last_|last_(.|\n)*errors",
        "flaky.names == ['test_shape'] and code == 1",
        False,
    ),
    "a timer of the event loop holds the context of the request that set it": (
        """
        import asyncio, contextvars
        request = contextvars.ContextVar("request", default=None)
        loop = asyncio.new_event_loop()
        class Sessions:
            def __init__(self):
                self.alive = set()
            def touch(self, user):
                self.alive.add(user)
                loop.call_later(1800, self.alive.discard, user)
        sessions = Sessions()
        async def handle(user, mib):
            request.set({"user": user, "image": big(mib)})
            sessions.touch(user)
            return request.get()["image"].numel()
        for user in ("ann", "bob"):
            loop.run_until_complete(handle(user, 5))
        """,
        r"_scheduled|_context|call_later|\bloop\b",
        "loop.run_until_complete(asyncio.sleep(0, 'ok')) == 'ok' and sessions.alive == {'ann', 'bob'}",
        False,
    ),
    "an autograd Function that keeps its two outputs on ctx: a cycle gc cannot see": (
        """
        class Halves(torch.autograd.Function):
            @staticmethod
            def forward(ctx, rows):
                left, right = watch(rows * 0.5), watch(rows * 0.25)
                ctx.outputs = (left, right)
                return left, right
            @staticmethod
            def backward(ctx, left, right):
                return left * 0.5 + right * 0.25
        weight = torch.ones(2 << 18, requires_grad=True)
        def evaluate():
            left, right = Halves.apply(weight)
            return float((left - right).detach().mean())
        losses = [evaluate() for _ in range(2)]
        """,
        r"Halves|ctx|\.outputs",
        "losses == [0.25, 0.25] and weight.grad is None and weight.requires_grad",
        False,
    ),
    "torch.fx: values kept in the nodes' meta and in the interpreter's env": (
        """
        from torch import fx
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x + 1) * 2
        class Record(fx.Interpreter):
            def run_node(self, node):
                value = super().run_node(node)
                if node.op == "call_function":
                    node.meta["value"] = watch(value)
                return value
        traced = fx.symbolic_trace(Net())
        recorder = Record(traced, garbage_collect_values=False)
        assert recorder.run(torch.ones(3 << 18)).mean() == 4
        """,
        r"\bmeta\b(.|\n)*\benv\b|\benv\b(.|\n)*\bmeta\b",
        "traced(torch.zeros(2)).tolist() == [2.0, 2.0] and len(traced.graph.nodes) == 5",
        False,
    ),
    "callbacks of a torch Future that was never answered: only an answer lets go": (
        """
        results = []
        class Client:
            def __init__(self):
                self.pending = {}
            def call(self, key, batch):
                future = torch.futures.Future()
                future.add_done_callback(lambda done: results.append((key, done.value(), len(batch))))
                self.pending[key] = future
            def answer(self, key, value):
                self.pending.pop(key).set_result(value)
        client = Client()
        client.call("ping", ())
        client.call("train", big(4))
        client.call("lost", big(6))
        client.answer("train", 0.5)
        """,
        r"client\.pending|client\.answer|set_result|set_exception",
        "results[0] == ('train', 0.5, 1 << 20) and not client.pending['ping'].done()",
        False,
    ),
    "a notebook: a post_run_cell callback and a formatter for a class": (
        r'''
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.user_ns.update(big=big)
        shell.run_cell("class Grid:\n    pass")
        shell.run_cell("""
        def watch_memory():
            baseline, sizes = big(6), []
            def report(result):
                sizes.append(baseline.numel())
            get_ipython().events.register("post_run_cell", report)
        watch_memory()""")
        shell.run_cell("""
        def show_grids():
            palette = big(3)
            plain = get_ipython().display_formatter.formatters["text/plain"]
            plain.for_type(Grid, lambda grid, printer, cycle: printer.text(str(palette[:2])))
        show_grids()""")
        ''',
        r"(events|callbacks|post_run_cell|report)(.|\n)*(formatter|type_printers|for_type|Grid)|(formatter|type_printers|for_type|Grid)(.|\n)*(events|callbacks|post_run_cell|report)",
        "shell.run_cell('answer = 6 * 7').success and shell.user_ns['answer'] == 42 and 'Grid' in shell.user_ns and 'show_grids' in shell.user_ns",
        False,
    ),
    "AccumulateGrad nodes kept for their hooks after the head was replaced": (
        """
        class Reducer:
            def __init__(self):
                self.accumulators, self.hits = [], []
            def attach(self, module, bucket):
                for parameter in module.parameters():
                    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                    node.register_hook(lambda *gradients: self.hits.append(bucket[:1].clone()))
                    self.accumulators.append(node)
        reducer = Reducer()
        head = torch.nn.Linear(2, 3)
        reducer.attach(head, big(6))
        head = torch.nn.Linear(2, 5)
        reducer.attach(head, torch.zeros(4))
        """,
        r"reducer\.accumulators",
        "(reducer.hits.clear(), head(torch.ones(1, 2)).sum().backward(), len(reducer.hits))[2] == 2",
        False,
    ),
    "a test suite: a class's mock records its calls, and class clean-ups that never ran": (
        """
        import unittest
        from unittest import mock
        class TestExport(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.sink = mock.Mock(name="sink")
                cls.addClassCleanup(cls.release, big(4))
            @staticmethod
            def release(block):
                block.zero_()
            def test_push(self):
                self.sink.push(big(3), rank=0)
                self.assertTrue(self.sink.push.called)
        outcome = unittest.TestResult()
        TestExport.setUpClass()
        TestExport("test_push").run(outcome)
        """,
        r"(sink|mock_calls|call_args)(.|\n)*(_class_cleanups|doClassCleanups)|(_class_cleanups|doClassCleanups)(.|\n)*(sink|mock_calls|call_args)",
        "outcome.wasSuccessful() and outcome.testsRun == 1 and TestExport('test_push').countTestCases() == 1",
        False,
    ),
    "a server: the threading.local of a worker that waits for work": (
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        scratch = threading.local()
        pool = ThreadPoolExecutor(1, thread_name_prefix="infer")
        def infer(length):
            if getattr(scratch, "buffer", None) is None or len(scratch.buffer) < length:
                scratch.buffer = watch(torch.ones(length))
            return scratch.buffer[:length].sum().item()
        def app(environ, start_response):
            total = pool.submit(infer, int(environ["QUERY_STRING"])).result()
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [str(int(total)).encode()]
        assert app({"QUERY_STRING": str(5 << 18)}, lambda status, headers: None) == [b"1310720"]
        """,
        r"scratch|threading\.local|infer",
        "pool.submit(pow, 2, 5).result() == 32",
        False,
    ),
    "the optimizer keeps the groups of heads that were replaced": (
        """
        class Learner:
            def __init__(self):
                self.model = torch.nn.ModuleDict({"backbone": torch.nn.Linear(8, 1024), "head": torch.nn.Linear(1024, 4)})
                self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
            def grow(self, outputs):
                head = torch.nn.Linear(1024, outputs)
                if outputs < 1100: watch(head.weight)
                self.model["head"] = head
                self.opt.add_param_group({"params": [*head.parameters()]})
        learner = Learner()
        for outputs in (1024, 1056, 1120): learner.grow(outputs)
        """,
        r"learner\.opt\.param_groups \(list(.|\n)*learner\.model \(.*in use",
        "len(learner.opt.param_groups) == 2 and learner.opt.param_groups[1]['params'][0] is learner.model['head'].weight",
        False,
    ),
    "cancelled requests stay in the priority queue": (
        """
        import heapq
        background = torch.ones(6 << 18)
        class Entry:
            def __init__(self, name, state): self.name, self.state, self.dead = name, state, False
        class Frontier:
            def __init__(self): self.heap, self.finder = [], {}
            def push(self, cost, name, state):
                self.finder[name] = Entry(name, state)
                heapq.heappush(self.heap, (cost, name, self.finder[name]))
            def cancel(self, name): self.finder.pop(name).dead = True
        frontier = Frontier()
        for n in range(3):
            frontier.push(n, f"beam-{n}", big())
            frontier.cancel(f"beam-{n}")
        frontier.push(9, "beam-9", torch.ones(5 << 18))
        """,
        r"frontier\.heap \(list, 3 pieces\)(.|\n)*background \(torch.Tensor\), in use",
        "[one.dead for _, _, one in frontier.heap] == [False] and frontier.finder['beam-9'].state.sum() > 0 and background.sum() > 0",
        False,
    ),
    "a metaclass registers the class of each trial, with its table": (
        """
        class Meta(type):
            registry = {}
            def __new__(meta, name, bases, names):
                meta.registry[name] = cls = super().__new__(meta, name, bases, names)
                return cls
        class Plugin(metaclass=Meta): table = torch.eye(8)
        def trial(n):
            table = torch.ones(1 << 20)
            if n != 1: watch(table)
            return Meta(f"Trial{n}", (Plugin,), {"table": table})
        best = [trial(n) for n in range(4)][1]
        """,
        r"Meta\.registry(.|\n)*best\.table",
        "best.table.sum() > 0 and set(Meta.registry) == {'Plugin', 'Trial1'}",
        False,
    ),
    "clients that stop reading leave their stream suspended in a table": (
        """
        import asyncio
        streams, loop = {}, asyncio.new_event_loop()
        async def tokens(client):
            cache = big()
            while True:
                await asyncio.sleep(0)
                yield cache.sum().item()
        async def serve(client):
            streams[client] = tokens(client)
            await anext(streams[client])
        for client in ("a", "b"): loop.run_until_complete(serve(client))
        """,
        r"streams",
        "loop.run_until_complete(asyncio.sleep(0, True))",
        False,
    ),
    "heartbeats keep the context of the request that started them": (
        """
        import asyncio, contextvars
        payload, tasks, loop = contextvars.ContextVar("payload"), {}, asyncio.new_event_loop()
        async def heartbeat():
            while True: await asyncio.sleep(3600)
        async def connect(name):
            payload.set(big())
            tasks[name] = asyncio.create_task(heartbeat())
            await asyncio.sleep(0)
        for name in ("ann", "bob", "cy"): loop.run_until_complete(connect(name))
        """,
        r"'payload'\) and 2 alike",
        "not any(task.done() for task in tasks.values())",
        False,
    ),
    "cycles of the warm-up are frozen before the fork": (
        """
        class Request:
            def __init__(self): self.batch, self.me = big(), self
        model = torch.nn.Linear(512, 512)
        gc.disable(); Request(), Request(); gc.freeze(); gc.enable()
        """,
        r"reference cycle(.|\n)*gc\.unfreeze\(\)(.|\n)*model(.|\n)*in use",
        "model(torch.ones(1, 512)) is not None",
        False,
    ),
}
