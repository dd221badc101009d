"""Models and sessions that the program has registered: a release takes them off the device, and they are
back before the next task begins.

A model moves to host memory and back, the first of the eight steps (R27). Each tensor returns to the device
that it came from.

ONNX Runtime has no close function. Its memory is freed when the native session inside the Python
object is dropped, together with the descriptions that refer into it. The program keeps the emptied
object, which raises an error when it is used. Before the next task, the function that was registered
with the session makes a new one, and the object of the program takes over what that has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from .._devices.device import Device
from .._native import HookPoint, Touch
from .._runtime.torch import Tensor, absent, torch
from .._why.memory.probe import bytes_on
from . import registry
from .hook import Hook, each


class OffDevice(Hook):
    """Takes each registered object of a kind off the device, and brings it back."""

    restores = True

    def _entries(self) -> list[registry.Entry]:
        """Returns the registered objects that are still alive."""
        raise NotImplementedError

    def _take_off(self, one: Any, entry: registry.Entry) -> Touch | None:
        """Takes an object off the device and notes in `entry.was` that it did."""
        raise NotImplementedError

    def _bring_back(self, one: Any, entry: registry.Entry) -> Touch | None:
        """Brings it back."""
        raise NotImplementedError

    def run(self, round: int) -> list[Touch]:
        def take_off(entry: registry.Entry) -> Touch | None:
            one = entry.get()
            # Not if it is gone by now, or was taken off before.
            return None if one is None or entry.was else self._take_off(one, entry)

        return each(self._entries(), str, take_off)

    def restore(self) -> list[Touch]:
        def bring_back(entry: registry.Entry) -> Touch | None:
            one = entry.get()
            if one is None or not entry.was:
                return None
            touch = self._bring_back(one, entry)
            entry.was = {}
            return touch

        return each(self._entries(), str, bring_back)


class ModelsToHost(OffDevice):
    """Moves every registered model to host memory."""

    point = HookPoint.TO_HOST
    name = "models to host"
    limit_s = 60.0

    def __init__(self, device: Device) -> None:
        self._device = device

    def _entries(self) -> list[registry.Entry]:
        return registry.models.entries()

    def missing(self) -> str | None:
        if self._device.kind == "cpu":
            return "the device is host memory already"
        return None if self._entries() else "none; lowtide.register_model adds one"

    def expect(self) -> int | None:
        sizes = [size_on(entry.get(), self._device.name) for entry in self._entries()]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def _take_off(self, one: Any, entry: registry.Entry) -> Touch | None:
        held = size_on(one, self._device.name)
        if held == 0:
            return None
        allocated = self._allocated()
        # Noted first: a model that stops half-way is spread, and has to come back as well.
        entry.was = device_of_each_tensor(one) or {"": self._device.name}
        try:
            one.to("cpu")
        except Exception:
            if (device_of_each_tensor(one) or entry.was) == entry.was:
                entry.was = {}  # Nothing of it has moved.
            raise
        if held is None and allocated is not None and (after := self._allocated()) is not None:
            held = max(0, allocated - after) or None
        entry.size = held
        return Touch(str(entry), entry.size)

    def _allocated(self) -> int | None:
        """Returns what the allocator has given out, or `None` if the device cannot say."""
        try:
            return self._device.counts().allocated_bytes
        except Exception:  # noqa: BLE001  A model is moved also where its size stays unknown.
            return None

    def _bring_back(self, one: Any, entry: registry.Entry) -> Touch | None:
        try:
            put(one, entry.was)
            check(one, entry.was)
        except Exception:
            leave(one)
            raise
        size = size_on(one, self._device.name)
        return Touch(str(entry), entry.size if size is None else size)


def check(model: Any, was: dict[str, str]) -> None:
    """Raises RuntimeError if a tensor is not on its device again."""
    here = device_of_each_tensor(model)
    for name, home in was.items():
        found = here.get(name, home)
        if found != home:
            raise RuntimeError(f"{name} is on {found} and not on {home}")


def leave(model: Any) -> None:
    """Moves a model that has come back only in part to the host again. It has failed already."""
    with suppress(Exception):  # The failure before this one is reported.
        model.to("cpu")


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


# Attributes that refer into the native session, in the order in which the runtime itself drops
# them.
INSIDE = (
    "_inputs_meta",
    "_outputs_meta",
    "_overridable_initializers",
    "_input_meminfos",
    "_output_meminfos",
    "_input_epdevices",
    "_model_meta",
    "_sess",
)


class Sessions(OffDevice):
    """Closes every registered session."""

    point = HookPoint.SESSIONS
    name = "inference sessions"

    def _entries(self) -> list[registry.Entry]:
        return registry.sessions.entries()

    def missing(self) -> str | None:
        if self._entries():
            return None
        none = "none; lowtide.register_session adds one"
        unknown = absent(registry.RUNTIME)
        return f"{unknown}, and {none}" if unknown else none

    def _take_off(self, one: Any, entry: registry.Entry) -> Touch | None:
        closed = close(one, entry.close)
        entry.was = {"": "open"}
        return Touch(str(entry)) if closed else None

    def _bring_back(self, one: Any, entry: registry.Entry) -> Touch | None:
        reopen(one, entry)
        return Touch(str(entry))


def reopen(session: Any, entry: registry.Entry) -> None:
    """Makes a new session and lets the registered one take over what it has."""
    make = entry.open() if entry.open is not None else None
    if make is None:
        raise RuntimeError("the object whose method opens it is gone")
    made = make()
    # A function may also open the session itself and return it, or nothing.
    if made is None or made is session:
        return
    if type(made) is not type(session):
        raise TypeError(f"open made a {type(made).__name__}, not a {type(session).__name__}")
    # They change places, so that the new object takes the closed state with it when it goes: its
    # `__del__` may close what it has.
    mine, other = vars(session), vars(made)
    closed, opened = dict(mine), dict(other)
    mine.clear()
    other.clear()
    mine.update(opened)
    other.update(closed)


def close(session: Any, by: Callable[[Any], object] | None) -> bool:
    """Closes a session. Returns `False` if there was nothing left to close."""
    if by is not None:
        by(session)
        return True
    if registry.is_onnx(session):
        attributes = vars(session)
        open_before = attributes.get("_sess") is not None
        for name in INSIDE:
            if name in attributes:
                attributes[name] = None
        return open_before
    method = getattr(session, "close", None)
    if method is None:
        raise TypeError("it has no close method: register it with close=")
    method()
    return True
