"""Models to the host's memory and back: the first of the eight steps (R27), only for models that the
program has registered. They stay usable once they are back; each tensor returns to where it was."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .._torch import torch
from . import registry
from .hook import Hook, Touched, done

if TYPE_CHECKING:
    from .._torch import Device


class ModelsToHost(Hook):
    place = "to_host"
    name = "models to host"
    limit_s = 60.0

    def __init__(self, device: Device) -> None:
        self._device = device

    def missing(self) -> str | None:
        if self._device.kind == "cpu":
            return "the device is the host's memory already"
        if not registry.models.entries():
            return "none; lowtide.register_model adds one"
        return None

    def expect(self) -> int | None:
        sizes = [size_on(entry.get(), self._device.name) for entry in registry.models.entries()]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def run(self, round: int) -> Touched:
        touched: Touched = []
        failures: list[str] = []
        for entry in registry.models.entries():
            model = entry.get()
            if model is None or entry.was:
                continue  # It has died just now, or it is on the host already.
            held = size_on(model, self._device.name)
            if held == 0:
                continue
            was = places(model) or {"": self._device.name}
            try:
                model.to("cpu")
            except Exception as failure:  # noqa: BLE001  Its failure stops nobody else.
                failures.append(f"model {entry.name}: {type(failure).__name__}: {failure}")
            else:
                entry.was = was
                touched.append((f"model {entry.name}", held))
            del model
        return done(touched, failures)


def back() -> Touched:
    """Brings every model that went to the host back to where it was; says which, with bytes."""
    touched: Touched = []
    failures: list[str] = []
    for entry in registry.models.entries():
        model = entry.get()
        if model is None or not entry.was:
            continue
        try:
            put(model, entry.was)
        except Exception as failure:  # noqa: BLE001  Its failure stops nobody else.
            failures.append(f"model {entry.name}: {type(failure).__name__}: {failure}")
            continue
        homes, entry.was = set(entry.was.values()), {}
        held = [size_on(model, home) for home in homes]
        touched.append((f"model {entry.name}", sum(size for size in held if size is not None)))
    return done(touched, failures)


def put(model: Any, was: dict[str, str]) -> None:
    homes = set(was.values())
    if len(homes) == 1:
        model.to(homes.pop())
        return
    # A model that was spread over devices is spread again, by torch's own way of moving what a
    # module has itself, so that gradients and tied weights stay what they are.
    for prefix, module in model.named_modules():
        home_of: dict[int, str] = {}
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            home = was.get(f"{prefix}.{name}" if prefix else name)
            if home is not None:
                home_of[id(tensor)] = home
                if tensor.is_leaf and tensor.grad is not None:
                    home_of[id(tensor.grad)] = home
        module._apply(partial(_home, home_of), recurse=False)


def _home(home_of: dict[int, str], tensor: Any) -> Any:
    return tensor.to(home_of.get(id(tensor), tensor.device))


def named_tensors(model: Any) -> list[tuple[str, Any]]:
    """The parameters and buffers of a `torch.nn.Module`; nothing where it is something else."""
    module = torch()
    if module is None or not isinstance(model, module.nn.Module):
        return []
    return [*model.named_parameters(), *model.named_buffers()]


def places(model: Any) -> dict[str, str]:
    return {name: str(tensor.device) for name, tensor in named_tensors(model)}


def size_on(model: Any, device: str) -> int | None:
    """How much of a device's memory a model's tensors have, each storage once; `None` where it is
    no module and its tensors are not known."""
    from .._probe import probe

    tensors: list[object] = [tensor for _, tensor in named_tensors(model)]
    if not tensors:
        return None
    for _, parameter in model.named_parameters():
        if parameter.grad is not None:
            tensors.append(parameter.grad)
    found = {one[0]: one[1] for one in probe(tensors) if one is not None and one[2] == device}
    return sum(found.values())
