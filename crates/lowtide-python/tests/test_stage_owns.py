"""Stages own by default what was made in their block and only its variables hold. The rest stays, named."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import io
import pickle
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lowtide
import pytest
import torch
from alone import alone_with_torch
from torch import nn

pytestmark = pytest.mark.usefixtures("clean")

stage = functools.partial(lowtide.stage, device="cpu")
SIDE = 1024


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE, SIDE)
        self.scale = nn.Parameter(torch.ones(SIDE))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch) * self.scale


class Pipeline:
    def __init__(self) -> None:
        self.model, self.cache = Encoder(), torch.zeros(SIDE, SIDE)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch)


class Stubborn(Encoder):
    """Copies and unpickles itself its own way."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


BATCH = torch.ones(2, SIDE)
weights: list[weakref.ref[Any]] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    weights.clear()
    yield
    assert not hasattr(nn.Module.__init__, "__wrapped__"), "torch is as it was"
    assert not hasattr(nn.Module.__setstate__, "__wrapped__")


def load(make: Callable[[], Any] = Encoder) -> Any:
    made = make()
    model = made if isinstance(made, nn.Module) else made.model
    weights.append(weakref.ref(model.layer.weight))
    return made


def are_freed() -> bool:
    return bool(weights) and all(one() is None for one in weights)


def is_used(model: Any, name: str) -> None:
    with pytest.raises(RuntimeError, match=f"ended with stage '{name}'"):
        model(BATCH)


class TestIsOwned:
    def test_a_model_and_the_results_stay(self) -> None:
        with stage("embed") as one, torch.no_grad():
            model = load()
            result = model(BATCH)
        assert are_freed() and one.receipt is not None
        assert result.shape == (2, SIDE), "results stay"
        is_used(model, "embed")
        assert "ended with stage" in repr(model)
        is_used(pickle.loads(pickle.dumps(model)), "embed")
        is_used(copy.deepcopy(model), "embed")
        with pytest.raises(RuntimeError, match="embed"):
            model.to("meta")

    @pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
    @pytest.mark.parametrize("kind", [Encoder, Stubborn])
    def test_copies_and_unpickled_models(self, kind: type, again: Any) -> None:
        older = kind()
        with stage("copies"):
            model = load(lambda: again(older))
        assert are_freed()
        is_used(model, "copies")
        assert older(BATCH).shape == (2, SIDE), "the one before the stage is not its own"

    def test_saved_and_loaded(self) -> None:
        file = io.BytesIO()
        torch.save(Encoder(), file)
        file.seek(0)
        with stage("saved"):
            model = load(lambda: torch.load(file, weights_only=False))
        assert are_freed() and model is not None

    def test_in_containers_tuples_and_loops(self) -> None:
        with stage("many"):
            first, (second, *more) = load(), (load(), load())
            named = {"a": load(), "b": [load()]}
            for number in range(2):
                last = load()
        assert are_freed() and number == 1
        for model in (first, second, more[0], named["a"], last):
            is_used(model, "many")

    def test_a_pipeline_with_its_own_tensors(self) -> None:
        with stage("pipe"), torch.no_grad():
            pipe = load(Pipeline)
            weights.append(weakref.ref(pipe.cache))
            result = pipe(BATCH)
        assert are_freed() and result.shape == (2, SIDE)
        is_used(pipe, "pipe")

    def test_a_part_a_parent_and_an_optimizer(self) -> None:
        with stage("train"):
            model = load()
            model.layer.__dict__["parent"] = model  # As some libraries do.
            part, optimizer = model.layer, torch.optim.SGD(model.parameters())
            model(BATCH).sum().backward()
        assert are_freed() and optimizer is not None
        is_used(part, "train")

    def test_a_closure_of_the_block(self) -> None:
        with stage("closure"):
            model = load()
            call = lambda batch: model(batch)
        assert are_freed()
        is_used(call, "closure")

    def test_a_closure_of_the_block_that_a_library_has(self, shop: Any) -> None:
        with stage("closure"):
            model = load()
            shop.handlers = [lambda batch: model(batch)]
        assert shop.handlers[0](BATCH) is not None

    def test_an_exception(self) -> None:
        one = stage("fails")
        with pytest.raises(ValueError, match="mine"), one:
            model = load()
            raise ValueError("mine")
        assert are_freed()
        is_used(model, "fails")

    def test_a_global_of_the_function(self) -> None:
        code = "def run():\n global model\n with stage('global'):\n  model = load()\nrun()"
        names = {"stage": stage, "load": load}
        exec(code, names)
        assert are_freed()

    def test_used_through_other_managers(self) -> None:
        @contextlib.contextmanager
        def session(name: str) -> Iterator[None]:
            with stage(name):
                yield

        class Session:
            def __enter__(self) -> None:
                self.stage = stage("mine")
                self.stage.__enter__()

            def __exit__(self, *exception: object) -> None:
                self.stage.__exit__(*exception)  # type: ignore[arg-type]

        with session("theirs"):
            one = load()
        with Session():
            two = load()
        with contextlib.ExitStack() as stack:
            stack.enter_context(stage("stacked"))
            three = load()
        assert are_freed()
        is_used(one, "theirs")
        is_used(two, "mine")
        is_used(three, "stacked")

    def test_a_session_that_was_imported_in_the_block(self, monkeypatch: Any) -> None:
        class InferenceSession:
            def __init__(self) -> None:
                self._sess = [0]

            def run(self) -> int:
                return self._sess.pop()

        with stage("session"):
            runtime = types.ModuleType("onnxruntime")
            runtime.InferenceSession = InferenceSession  # type: ignore[attr-defined]
            monkeypatch.setitem(__import__("sys").modules, "onnxruntime", runtime)
            session = InferenceSession()
        with pytest.raises(RuntimeError, match="session"):
            session.run()
        assert not hasattr(InferenceSession.__init__, "__wrapped__")


class Stays:
    """Where a model is put that stays: each holds it in another way."""

    @staticmethod
    def attribute(model: Any, shop: Any) -> None:
        shop.runner.model = model

    @staticmethod
    def older_list(model: Any, shop: Any) -> None:
        shop.models.append(model)

    @staticmethod
    def bound_method(model: Any, shop: Any) -> None:
        shop.hooks = [model.forward]

    @staticmethod
    def pipeline(model: Any, shop: Any) -> None:
        shop.hooks = [functools.partial(print, model)]

    @staticmethod
    def closure(model: Any, shop: Any) -> None:
        shop.callback = lambda: model

    @staticmethod
    def generator(model: Any, shop: Any) -> None:
        shop.steps = (model for _ in range(2))
        next(shop.steps)


class TestStays:
    @pytest.mark.parametrize("way", [name for name in vars(Stays) if name[0] != "_"])
    def test_what_an_older_object_holds(
        self, way: str, shop: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop.runner, shop.models = types.SimpleNamespace(), []
        with stage("holds") as one:
            model = load()
            getattr(Stays, way)(model, shop)
        assert model(BATCH).shape == (2, SIDE)
        assert "stage.own(model)" in str(one.receipt) and "stage.own(model)" in caplog.text

    def test_a_lazily_cached_model_is_named(self, shop: Any) -> None:
        shop.load = load
        exec(
            "import functools\n@functools.lru_cache\ndef cached(): return load()\n"
            "_model = None\ndef lazy():\n global _model\n _model = _model or load()\n return _model\n",
            vars(shop),
        )
        with stage("lazy") as one:
            result = shop.lazy()(BATCH)
        assert "shop._model" in str(one.receipt), one.receipt
        assert "stage.own(shop._model)" in str(one.receipt), one.receipt
        with stage("cached") as two:
            model = shop.cached()
        assert "lru_cache" in str(two.receipt) and "stage.own(model)" in str(two.receipt)
        assert model(BATCH).shape == result.shape == shop.lazy()(BATCH).shape

    def test_a_lazy_global_of_the_module_with_the_block(self) -> None:
        code = (
            "_model = None\ndef lazy():\n global _model\n _model = _model or load()\n return _model\n"
            "with stage('script') as one:\n model = lazy()\n"
        )
        names: dict[str, Any] = {"stage": stage, "load": load}
        exec(code, names)
        assert names["model"](BATCH).shape == (2, SIDE)
        assert "stage.own(model)" in str(names["one"].receipt)

    def test_a_returned_model(self) -> None:
        def made() -> Any:
            with stage("factory"):
                model = load()
                return model

        def yielded() -> Any:
            with stage("factory"):
                model = load()
                yield model

        assert made()(BATCH).shape == (2, SIDE)
        assert next(yielded())(BATCH) is not None

    def test_what_was_made_before(self) -> None:
        pool = [Encoder()]
        with stage("older") as one:
            model = pool.pop()
        assert model(BATCH).shape == (2, SIDE)
        assert one.receipt is not None

    def test_an_object_with_tensors_and_without_a_model_is_named(self) -> None:
        class Engine:
            def __init__(self) -> None:
                self.weights = torch.ones(4 << 20)

        with stage("engine") as one:
            engine = Engine()
        assert engine.weights is not None and "add stage.own(engine)" in str(one.receipt)

    def test_an_attribute_of_the_object_whose_method_it_is(self) -> None:
        class Runner:
            def load(self) -> Any:
                with stage("self") as one:
                    self.model = load()
                return one.receipt

        runner = Runner()
        assert "add stage.own(self.model)" in str(runner.load()) and runner.model(BATCH) is not None

    def test_owns_false_is_the_old_way(self) -> None:
        with stage("old", owns=False) as one:
            model, other = load(), one.own(Encoder())
        assert model(BATCH).shape == (2, SIDE)
        assert other.layer is None
        assert "stays" not in str(one.receipt)

    def test_an_innocent_module_without_memory(self) -> None:
        with stage("loss"):
            model, loss = load(), nn.MSELoss()
        assert are_freed() and model is not None
        assert loss(BATCH, BATCH) == 0

    def test_a_model_in_an_exception_that_was_kept(self) -> None:
        kept = []

        def fails(model: Any) -> None:
            raise ValueError(model)

        with stage("kept"):
            try:
                fails(load())
            except ValueError as error:
                kept.append(error)
        assert kept[0].args[0](BATCH) is not None


class TestWhose:
    def test_an_inner_stage_owns_its_own(self) -> None:
        with stage("outer") as outer:
            one = load()
            with stage("inner") as inner:
                two, three = load(), outer.own(load())
                four = one
            is_used(two, "inner")
            assert one(BATCH) is not None and three(BATCH) is not None and four is one
            assert inner.receipt is not None and "stage.own(three)" in str(inner.receipt)
        assert are_freed()
        is_used(one, "outer")
        is_used(three, "outer")

    def test_what_an_inner_stage_left_is_the_outer_ones(self) -> None:
        with stage("outer"):
            models: list[Any] = []
            with stage("inner"):
                models.append(load())
            assert models[0](BATCH) is not None
        assert are_freed()

    def test_two_threads(self) -> None:
        together = threading.Barrier(2, timeout=60)
        found: dict[str, Any] = {}

        def work(name: str) -> None:
            with stage(name), torch.no_grad():
                model = load()
                together.wait()
                result = model(BATCH)
            found[name] = model, result

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        [one.start() for one in threads]
        [one.join() for one in threads]
        assert are_freed()
        for name, (model, _) in found.items():
            is_used(model, name)

    def test_what_another_thread_makes_is_not_the_stages(self) -> None:
        with ThreadPoolExecutor(1) as pool, stage("mine") as one:
            model = pool.submit(load).result()
        assert model(BATCH).shape == (2, SIDE)
        assert "stage.own(model)" in str(one.receipt), "but it is named"

    def test_tasks(self) -> None:
        async def work(name: str, others: Any) -> Any:
            with stage(name):
                model = load()
                await others.wait_for_all()
                result = model(BATCH).detach()
            return model, result

        class All:
            def __init__(self) -> None:
                self.left, self.all = 2, asyncio.Event()

            async def wait_for_all(self) -> None:
                self.left -= 1
                if not self.left:
                    self.all.set()
                await self.all.wait()

        async def main() -> Any:
            others = All()
            return await asyncio.gather(work("a", others), work("b", others))

        (one, _), (two, _) = asyncio.run(main())
        assert are_freed()
        is_used(one, "a")
        is_used(two, "b")

    def test_what_the_consumer_of_a_generator_makes(self) -> None:
        def batches() -> Iterator[int]:
            with stage("batches"):
                model = load()
                for number in range(3):
                    model(BATCH)
                    yield number

        for _ in batches():
            other = Encoder()
            break
        gc.collect()
        assert are_freed()
        assert other(BATCH).shape == (2, SIDE)


def test_a_cell_that_runs_twice() -> None:
    pytest.importorskip("IPython")
    cell = (
        "with lowtide.stage('cell', device='cpu') as stage:\n"
        "    model = nn.Linear(1024, 1024)\n    weights.append(weakref.ref(model.weight))\n"
        "    result = model(torch.ones(1, 1024)).detach()"
    )
    code = f"""
        import torch, lowtide, weakref
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_cell("import torch, lowtide, weakref\\nfrom torch import nn\\nweights = []")
        for _ in range(2):
            assert shell.run_cell({cell!r}, store_history=True).success
            assert all(one() is None for one in shell.user_ns["weights"])
        assert shell.user_ns["result"].shape == (1, 1024)
        assert not shell.run_cell("model(result)").success
        assert "ended with stage 'cell'" in str(shell.last_execution_result.error_in_exec if hasattr(shell, "last_execution_result") else __import__("sys").last_value)
    """
    alone_with_torch(code)


def test_of_a_wrapper_and_its_model_only_what_is_enough_is_advised(shop: Any) -> None:
    class Wrapper:
        def __init__(self) -> None:
            self.net = shop.kept = Encoder()

    with stage("embed") as one:
        embedder = Wrapper()
    advice = [line for line in str(one.receipt).splitlines() if "stage.own(" in line]
    # Both lead to the model.
    ways = ("stage.own(shop.kept)", "stage.own(embedder.net)")
    assert len(advice) == 1 and advice[0].endswith(ways), one.receipt
    assert embedder.net is shop.kept
