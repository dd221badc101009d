"""Actions that run when a module has been imported: at once if it is there already."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .._runtime.log import tell

Action = Callable[[ModuleType], None]


class _Watch:
    """A finder of modules that lets the others find, and runs actions after the import."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}
        self._searching: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.actions or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader, name)
        return spec

    def _extend(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # A loader may serve several modules, and a module may be loaded again.
            if module.__name__ == name:
                del loader.exec_module
            execute(module)
            if module.__name__ == name:
                for action in self.actions.pop(name, ()):
                    _run_safely(action, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            kind = type(loader).__name__
            tell(f"{name} runs as without lowtide: its loader {kind} is fixed")


_watch = _Watch()


def when_imported(name: str, action: Action) -> None:
    """Runs `action` with a module of the program: now if it has been imported, else after its import.

    An action that fails later is told, so that the program's import goes on. One that fails now
    raises.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        action(module)
        return
    _watch.actions.setdefault(name, []).append(action)
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)


def _run_safely(action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as failure:  # noqa: BLE001  The program runs as without lowtide.
        kind = type(failure).__name__
        tell(f"{module.__name__} runs as without lowtide: {kind}: {failure}")
