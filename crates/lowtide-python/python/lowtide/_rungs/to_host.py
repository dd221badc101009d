"""Moves registered models to host memory and back: the first of the eight steps (R27).

A model is usable again once it is back. Each tensor returns to the device that it came from.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .._devices.device import Device
from .._native import HookPoint, Touch
from .._runtime.torch import Tensor, torch
from .._why.memory.probe import bytes_on
from . import registry
from .hook import Hook, each


class ModelsToHost(Hook):
    """Moves every registered model to host memory."""

    point = HookPoint.TO_HOST
    name = "models to host"
    limit_s = 60.0
    restores = True

    def __init__(self, device: Device) -> None:
        self._device = device

    def missing(self) -> str | None:
        if self._device.kind == "cpu":
            return "the device is host memory already"
        if not registry.models.entries():
            return "none; lowtide.register_model adds one"
        return None

    def expect(self) -> int | None:
        sizes = [size_on(entry.get(), self._device.name) for entry in registry.models.entries()]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def run(self, round: int) -> list[Touch]:
        return each(registry.models.entries(), _name, self._move)

    def _move(self, entry: registry.Entry) -> Touch | None:
        model = entry.get()
        if model is None or entry.was:
            return None  # It is gone by now, or it is on the host already.
        held = size_on(model, self._device.name)
        if held == 0:
            return None
        allocated = self._allocated()
        # Noted first: a model that stops half-way is spread, and has to come back as well.
        entry.was = device_of_each_tensor(model) or {"": self._device.name}
        try:
            model.to("cpu")
        except Exception:
            if (device_of_each_tensor(model) or entry.was) == entry.was:
                entry.was = {}  # Nothing of it has moved.
            raise
        entry.size = given_up(allocated, self._allocated()) if held is None else held
        return Touch(_name(entry), entry.size)

    def _allocated(self) -> int | None:
        """Returns what the allocator has given out, or `None` if the device cannot say."""
        try:
            return self._device.counts().allocated_bytes
        except Exception:  # noqa: BLE001  A model is moved also where its size stays unknown.
            return None

    def restore(self) -> list[Touch]:
        return each(registry.models.entries(), _name, self._move_back)

    def _move_back(self, entry: registry.Entry) -> Touch | None:
        model = entry.get()
        if model is None or not entry.was:
            return None
        try:
            put(model, entry.was)
            check(model, entry.was)
        except Exception:
            leave(model)
            raise
        size = size_on(model, self._device.name)
        entry.was = {}
        return Touch(_name(entry), entry.size if size is None else size)


def _name(entry: registry.Entry) -> str:
    return f"model {entry.name}"


def given_up(before: int | None, after: int | None) -> int | None:
    """Returns how many bytes an allocator gave up, or `None` if that is not known or nothing."""
    if before is None or after is None or before <= after:
        return None
    return before - after


def check(model: Any, was: dict[str, str]) -> None:
    """Raises RuntimeError if a tensor is not on its device again."""
    here = device_of_each_tensor(model)
    for name, home in was.items():
        found = here.get(name, home)
        if found != home:
            raise RuntimeError(f"{name} is on {found} and not on {home}")


def leave(model: Any) -> None:
    """Moves a model that has come back only in part to the host again. It has failed already."""
    try:
        model.to("cpu")
    except Exception:  # noqa: BLE001, S110  The failure before this one is reported.
        pass


def put(model: Any, was: dict[str, str]) -> None:
    """Moves a model to the devices in `was`, by the names of its tensors."""
    homes = set(was.values())
    if len(homes) == 1:
        model.to(homes.pop())
        return
    # A model that was spread over several devices is spread again, by the function with which torch
    # moves a module's own tensors, so that gradients and tied weights stay what they are.
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


def _home(home_of: dict[int, str], tensor: Tensor) -> Tensor:
    return tensor.to(home_of.get(id(tensor), tensor.device))


def named_tensors(model: Any) -> list[tuple[str, Tensor]]:
    """Returns the parameters and buffers of a `torch.nn.Module`, and nothing for other objects."""
    module = torch()
    if module is None or not isinstance(model, module.nn.Module):
        return []
    return [*model.named_parameters(), *model.named_buffers()]


def device_of_each_tensor(model: Any) -> dict[str, str]:
    """Returns the device of each tensor of a model, by the tensor's name."""
    return {name: str(tensor.device) for name, tensor in named_tensors(model)}


def size_on(model: Any, device: str) -> int | None:
    """Returns how much of a device's memory a model's tensors use, each storage counted once.

    Returns `None` for an object that is no module, whose tensors are not known: how much the
    allocator gave up when it moved says its size.
    """
    tensors: list[object] = [tensor for _, tensor in named_tensors(model)]
    if not tensors:
        return None
    for _, parameter in model.named_parameters():
        if parameter.grad is not None:
            tensors.append(parameter.grad)
    return bytes_on(tensors, device)
