"""Names for what torch keeps: parts of modules, gradients, hooks, graphs, views."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import names
import pytest
from alone import in_a_fork
from lowtide._why.naming import words as path
from lowtide._why.references.readers import references

torch = pytest.importorskip("torch")
Root, path_text, path_verb = path.Root, names.path_text, names.path_verb
MODULES = Root("modules", "shop")


def steps(holder: object, held: object) -> list[str]:
    return [found.step for found in references(holder, held)]


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        self.heads = torch.nn.ModuleDict({"main": torch.nn.Linear(2, 2)})
        self.register_buffer("table", torch.ones(3))

    def __getattr__(self, name: str) -> Any:
        if armed:
            raise AssertionError(name)
        return super().__getattr__(name)


armed: list[int] = []


def test_parts_of_modules(shop: Any) -> None:
    shop.net = net = Net()
    layers, heads = net.layers, net.heads
    first, weight, table, main = layers[0], layers[0].weight, net.table, heads["main"]
    between = [
        net,
        vars(net),
        vars(net)["_modules"],
        layers,
        vars(layers),
        vars(layers)["_modules"],
    ]
    objects = [shop, vars(shop), *between, first, vars(first), vars(first)["_parameters"], weight]
    armed.append(1)
    try:
        assert steps(net, layers) == [".layers"]
        assert steps(net, table) == [".table"]
        assert steps(layers, first) == ["[0]"]
        assert steps(heads, main) == ["['main']"]
        assert path_text(MODULES, objects) == "shop.net.layers[0].weight"
        assert path_verb(MODULES, objects) == "shop.net.layers[0].weight = None"
    finally:
        armed.clear()
    references(first, weight)[0].cut()
    assert first.weight is None
    references(net, table)[0].cut()
    assert net.table is None
    assert first.bias is not None


def test_sequential_and_parameter_list() -> None:
    sequential = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert steps(sequential, sequential[0]) == ["[0]"]
    parameters = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2))])
    assert steps(parameters, parameters[0]) == ["[0]"]


def test_gradients_are_cut() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.sum().backward()
    gone = weakref.ref(parameter.grad)
    found = references(parameter, parameter.grad)
    assert [one.step for one in found] == [".grad"]
    found[0].cut()
    del found
    assert parameter.grad is None
    assert gone() is None


@in_a_fork
def test_optimizer_state() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    state = optimizer.state
    assert steps(optimizer, state) == [".state"]
    assert " (key 0, <Parameter>)" in steps(state, parameter)
    assert steps(state, state[parameter]) == ["[<Parameter>]"]
    moment = state[parameter]["exp_avg"]
    assert steps(state[parameter], moment) == ["['exp_avg']"]


def test_hooks(shop: Any) -> None:
    batch = torch.ones(2)

    def hook(grad: Any) -> Any:
        return grad * batch

    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(hook)
    key = next(iter(tensor._backward_hooks))
    found = references(tensor, hook)
    assert [one.step for one in found] == [f"._backward_hooks[{key}]"]
    shop.tensor = tensor
    cells: Any = hook.__closure__
    objects = [shop, tensor, tensor._backward_hooks, hook, cells, cells[0], batch]
    text = f"shop.tensor._backward_hooks[{key}].__closure__[0].cell_contents  # closure: batch"
    assert path_text(MODULES, objects) == text
    found[0].cut()
    assert not tensor._backward_hooks

    shop.layer = layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(hook)
    key = next(iter(layer._forward_hooks))
    objects = [shop, layer, vars(layer), layer._forward_hooks, hook]
    assert path_text(MODULES, objects) == f"shop.layer._forward_hooks[{key}]"


def test_autograd_graph(shop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    saved = torch.ones(3)
    shop.losses = [(weight * saved).sum()]
    loss = shop.losses[0]
    assert [one.kind for one in references(loss, weight)] == ["autograd graph"]
    assert references(loss, torch.ones(3)) == []
    for held in (weight, saved):
        objects = [shop, vars(shop), shop.losses, loss, held]
        assert path_text(MODULES, objects) == "autograd graph of shop.losses[0]"
        assert path_verb(MODULES, objects) == "shop.losses[0] = shop.losses[0].item()"
    node = loss.grad_fn
    assert steps(loss, node) == [".grad_fn"]
    following = node.next_functions[0][0]
    assert steps(node, following) == [".next_functions[0][0]"]
    gone = weakref.ref(weight)
    found = references(loss, weight)[0]
    del weight, held, objects, node, following
    gc.collect()
    assert gone() is not None
    found.cut()
    gc.collect()
    assert gone() is None


def test_custom_function() -> None:
    class Double(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.kept = x.detach()
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    out = Double.apply(torch.ones(2, requires_grad=True))
    node = out.grad_fn
    assert steps(node, node.kept) == [".kept"]


def test_views(shop: Any) -> None:
    whole = torch.ones(1000)
    shop.part = whole[:1]
    assert steps(shop.part, whole) == [" (view)"]
    assert path_text(MODULES, [shop, shop.part]) == "shop.part  # view"
    assert path_verb(MODULES, [shop, shop.part]) == "del shop.part"
    assert path_text(MODULES, [shop, shop.part, whole]) == "shop.part._base  # view"
    shop.loose = whole[:1].detach()
    assert path_text(MODULES, [shop, shop.loose]) == "shop.loose  # view"
    shop.whole = whole
    assert path_text(MODULES, [shop, whole]) == "shop.whole"
    storage = whole.untyped_storage()
    assert path_text(MODULES, [shop, whole, storage]) == "shop.whole"


def test_subclasses_and_warnings_are_not_woken() -> None:
    ran = []

    class Loud(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            ran.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(2).as_subclass(Loud)
    inner = (torch.ones(2, requires_grad=True) * 2).as_subclass(Loud)
    ran.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for holder in (tensor, inner, inner * 1):
            ran.clear()
            references(holder, object())
            path_text(Root("interpreter", "x"), [[holder], holder])
            assert ran == []


def test_saved_tensor_hooks_do_not_run() -> None:
    ran = []

    def unpack(value: Any) -> Any:
        ran.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack):
        leaf = torch.ones(2, requires_grad=True)
        out = (leaf * leaf).sum()
    references(out, leaf)
    references(out, torch.ones(2))
    references(out.grad_fn, leaf)
    assert ran == []
