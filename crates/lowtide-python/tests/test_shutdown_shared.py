"""Shutdowns of objects that share something with others: a configuration, a list, a registry."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from types import SimpleNamespace
from typing import Any

import lowtide
import numpy
import pytest
import torch
from kernel import DEVICE, MIB, SIZE, in_use, is_about, weights
from lowtide._release import plan as _plan

pytestmark = pytest.mark.usefixtures("clean")


class CompilationConfig:
    def __init__(self) -> None:
        self.level = 3
        self.static_forward_context: dict[str, Any] = {}


class VllmConfig:
    def __init__(self) -> None:
        self.compilation_config = CompilationConfig()
        self.model = "facebook/opt-125m"


class Attention(torch.nn.Module):
    """A layer that registers itself with the configuration, as vLLM's do."""

    def __init__(self, name: str, config: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weights(SIZE // 4), requires_grad=False)
        self.kv_cache = [weights(SIZE // 4)]
        config.compilation_config.static_forward_context[name] = self


class Runner:
    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        self.model = torch.nn.Sequential(*(Attention(f"layer.{n}", config) for n in range(2)))
        self.kv_caches = [layer.kv_cache[0] for layer in self.model]
        self.compilation_config = config.compilation_config
        self.notes = {"started": 12}


class Worker:
    def __init__(self, config: Any, runner: Any) -> None:
        self.vllm_config, self.model_runner = config, runner


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("kind", [VllmConfig, "namespace"])
def test_a_configuration_that_the_worker_shares(kind: Any, also: bool) -> None:
    def make() -> Any:
        if kind is VllmConfig:
            return VllmConfig()
        inner = SimpleNamespace(level=3, static_forward_context={})
        return SimpleNamespace(compilation_config=inner, model="facebook/opt-125m")

    before = in_use()
    config = make()
    worker = Worker(config, Runner(config))
    runner = worker.model_runner
    assert is_about(in_use() - before, SIZE)
    receipt = lowtide.shutdown(runner, also=[config] if also else (), device=DEVICE)
    assert is_about(in_use(), before), receipt.detailed()
    assert receipt.verdict == "released", receipt.detailed()
    assert runner.vllm_config is config is worker.vllm_config
    assert config.compilation_config.static_forward_context == {}, "cleared, and still there"
    assert (config.model, config.compilation_config.level) == ("facebook/opt-125m", 3)
    assert runner.kv_caches == [] and runner.notes == {"started": 12}
    drop = receipt.rung("drop")
    assert drop is not None
    touched = " ".join(touch.what for touch in drop.touched)
    assert "static_forward_context" in touched and "kv_caches" in touched, touched
    assert lowtide.shutdown(runner, device=DEVICE).verdict == "no-effect"


def test_memory_that_only_the_shared_configuration_leads_to() -> None:
    config = VllmConfig()
    context = config.compilation_config.static_forward_context
    runner = SimpleNamespace(vllm_config=config, model=weights())
    worker = SimpleNamespace(vllm_config=config)
    before = in_use()
    context["layer.0"] = weights()
    receipt = lowtide.shutdown(runner, device=DEVICE)
    assert receipt.verdict == "released", receipt
    assert is_about(before - in_use(), SIZE), "the model, and what the context had"
    assert worker.vllm_config.compilation_config.static_forward_context is context and not context


def test_two_engines_that_share_a_configuration_do_not_harm_each_other() -> None:
    config = VllmConfig()
    one, other = Runner(config), Runner(config)
    # The second engine's layers took the place of the first's; the first's have names of their own.
    context = config.compilation_config.static_forward_context
    context.update({f"first.{n}": layer for n, layer in enumerate(one.model)})
    receipt = lowtide.shutdown(one, device=DEVICE)
    assert receipt.verdict == "released", receipt
    assert sorted(context) == ["layer.0", "layer.1"], "those of the other engine stay"
    assert len(other.kv_caches) == 2 and context["layer.0"] is other.model[0]


class Plain:
    """A layer that is no module of torch."""

    def __init__(self) -> None:
        self.kv = weights()


def subclass() -> dict[str, object]:
    return type("Context", (dict,), {})()


@pytest.mark.parametrize("make", [dict, OrderedDict, subclass, list, deque, set])
@pytest.mark.parametrize("layer", [Plain, lambda: torch.nn.Linear(4096, 6144, device=DEVICE)])
def test_every_kind_of_container_and_of_layer(make: Any, layer: Any) -> None:
    before = in_use()
    config = SimpleNamespace(context=make())
    worker = SimpleNamespace(config=config)
    runner = SimpleNamespace(config=config, layer=layer())
    if isinstance(config.context, dict):
        config.context["layer"] = runner.layer
    else:
        (config.context.add if make is set else config.context.append)(runner.layer)
    receipt = lowtide.shutdown(runner, device=DEVICE)
    assert receipt.verdict == "released", receipt.detailed()
    assert is_about(in_use(), before)
    assert len(worker.config.context) == 0 and runner.config is config


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_configuration_in_a_list_of_parts(kind: Any) -> None:
    config = SimpleNamespace(context={})
    worker = SimpleNamespace(config=config)
    runner = SimpleNamespace(
        parts=kind([torch.nn.Linear(4096, 6144, device=DEVICE), config, "name"])
    )
    config.context["layer"] = runner.parts[0]
    assert lowtide.shutdown(runner, device=DEVICE).verdict == "released"
    assert worker.config.context == {}
    assert kind is tuple or runner.parts == [config, "name"]


def test_a_container_that_others_have_too_is_named() -> None:
    runner = SimpleNamespace(model=weights(), caches=[weights()])
    worker = SimpleNamespace(caches=runner.caches)
    receipt = lowtide.shutdown(runner, device=DEVICE)
    assert receipt.verdict == "pinned" and is_about(receipt.freed_bytes or 0, SIZE), receipt
    assert runner.model is None and len(worker.caches) == 1
    paths = [holder.path for holder in receipt.holders]
    assert any("worker.caches" in path for path in paths), paths
    assert not any("runner" in path for path in paths), paths


def test_a_registry_that_the_runner_refers_to_keeps_the_models_of_others() -> None:
    registry = SimpleNamespace(models={"b": torch.nn.Linear(1024, 1024, device=DEVICE)})
    runner = SimpleNamespace(registry=registry, model=torch.nn.Linear(4096, 4096, device=DEVICE))
    registry.models["a"] = runner.model
    receipt = lowtide.shutdown(runner, device=DEVICE)
    assert receipt.verdict == "released", receipt
    assert list(registry.models) == ["b"] and runner.registry is registry


@pytest.mark.parametrize("kind", [dict, list])
def test_a_container_of_weights_that_two_runners_share_is_left_alone(kind: type) -> None:
    shared: Any = {"w": weights()} if kind is dict else [weights()]
    one, other = SimpleNamespace(state=shared), SimpleNamespace(state=shared)
    del shared
    receipt = lowtide.shutdown(one, device=DEVICE)
    assert receipt.verdict == "pinned", receipt
    assert len(other.state) == 1 and one.state is other.state
    assert any("state" in holder.path for holder in receipt.holders), receipt


class Holding:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"weights": weights(), "step": 12345, "history": [1, 2]}
        self.parts = SimpleNamespace(model=weights(), seen={"a": 1})
        self.list = ["name", weights(16 * MIB), {"kept": True}]
        self.user = UserDict(cache=weights(16 * MIB), kept=1)


def test_what_else_a_container_holds_is_not_lost() -> None:
    before = in_use()
    engine = Holding()
    receipt = lowtide.shutdown(engine, device=DEVICE)
    assert receipt.verdict == "released" and is_about(in_use(), before), receipt
    assert engine.state == {"step": 12345, "history": [1, 2]}
    assert engine.parts.seen == {"a": 1} and engine.parts.model is None
    assert engine.list == ["name", {"kept": True}]
    assert dict(engine.user) == {"kept": 1}


def test_a_shutdown_that_would_free_nothing_drops_nothing() -> None:
    engine = Holding()
    held = [engine.state["weights"], engine.parts.model, engine.list[1], engine.user["cache"]]
    receipt = lowtide.shutdown(engine, device=DEVICE)
    assert receipt.verdict == "pinned"
    assert engine.state["weights"] is held[0] and engine.parts.model is held[1]
    assert engine.list[1] is held[2]
    paths = [holder.path for holder in receipt.holders]
    assert any("held" in path for path in paths), paths
    assert not any("engine" in path for path in paths), "who is shut down is no news"
    assert any("others hold all of it" in line for line in receipt.advice)
    held.clear()
    assert lowtide.shutdown(engine, device=DEVICE).verdict == "released"


def test_what_was_dropped_in_vain_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Holding()
    held = [engine.state["weights"], engine.parts.model, engine.list[1], engine.user["cache"]]
    plan = _plan.plan

    def hopeful(*arguments: Any, **keywords: Any) -> Any:
        # As if somebody whom no walk can see held it all.
        monkeypatch.setattr(_plan, "plan_shutdown", lambda *them: Seen(leads_to(*them)))
        return plan(*arguments, **keywords)

    leads_to = _plan.plan_shutdown

    class Seen:
        def __init__(self, found: Any) -> None:
            self.drops, self.tensors, self.path = found.drops, found.tensors, found.path
            self.freed_bytes, self.stays, self.is_alone = SIZE, [], False

    monkeypatch.setattr(_plan, "plan", hopeful)
    receipt = lowtide.shutdown(engine, device=DEVICE)
    drop = receipt.rung("drop")
    assert drop is not None and drop.touched, "it did try"
    assert receipt.verdict == "pinned"
    assert engine.state["weights"] is held[0] and engine.parts.model is held[1]
    assert engine.list == ["name", held[2], {"kept": True}]
    assert any("is back" in line for line in receipt.advice), receipt.advice


class Engine:
    """Holds a model, and shares with others what leads to no memory."""

    def __init__(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
        self.model = torch.nn.Sequential(layer, torch.nn.ReLU()).requires_grad_(False)
        self.parts = {"cache": [torch.zeros(100)], "config": VllmConfig}
        self.itself = self


def planned(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], list[str]]:
    """Returns how a shutdown was planned, without a walk or with one, and what it would drop."""
    ways: list[bool] = []
    own = _plan.plan_shutdown

    def noting(*given: Any) -> Any:
        ways.append(given[-1])
        found = own(*given)
        ways[-1] = found.is_alone
        return found

    with monkeypatch.context() as patch:
        patch.setattr(_plan, "plan_shutdown", noting)
        made = _plan.plan(engine)
    return ways, [step.path for step in made.steps]


def test_what_only_one_object_holds_is_found_without_a_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    ways, found = planned(engine, monkeypatch)
    assert ways == [True], "one plan, and proved"
    monkeypatch.setattr(_plan, "have_own_memory", lambda _: False)
    ways, walked = planned(engine, monkeypatch)
    assert ways == [True, False] and found == walked and "engine.model" in found


def elsewhere(engine: Engine) -> dict[str, Any]:
    """Returns ways in which others hold some of the memory."""
    weight = engine.model[0].linear1.weight
    numbers = numpy.zeros(100, "f4")
    base = torch.zeros(100)
    engine.parts["numpy"], engine.parts["view"] = torch.from_numpy(numbers), base[:50]
    only = {name: engine.parts.pop(name) for name in ("numpy", "view")}
    return {
        "a weight": weight,
        "the attributes of a part": vars(engine.model[0]),
        "a bound method": engine.model.forward,
        "a table of parameters": engine.model[0].norm1._parameters,
        "a container": engine.parts["cache"],
        "a view": weight[:1],
        "a detached tensor": weight.detach(),
        "a storage": weight.untyped_storage(),
        "an array over it": weight.numpy(),
        "the array of a tensor": (numbers, only["numpy"]),
        "the base of a view": (base, only["view"]),
        "a graph": (weight * torch.ones_like(weight, requires_grad=True)).sum(),
    }


@pytest.mark.parametrize("name", list(elsewhere(Engine())))
def test_what_others_hold_is_found_by_a_walk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    held = [elsewhere(engine)[name]]
    if type(held[0]) is tuple:
        held[0], engine.parts["shared"] = held[0]
    ways, quick = planned(engine, monkeypatch)
    assert ways[-1] is False, "nothing was proved"
    monkeypatch.setattr(_plan, "have_own_memory", lambda _: False)
    assert quick == planned(engine, monkeypatch)[1]
    del held
