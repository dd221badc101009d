"""Adopts projects that load models: their own clean-up becomes releases with receipts.

Nothing happens unless the program asks: `lowtide.adopt("autorag")`, `lowtide run --adopt autorag`, or
the variable LOWTIDE_ADOPT. Each project has an adapter in a file of its own. An adapter replaces
functions of the project as it is imported; it never imports the project.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from .._runtime.log import tell

if TYPE_CHECKING:
    from .._idle.idle import Idle
    from .._native import Receipt
    from .._stages.stage import Stages


class Project(NamedTuple):
    """A project that has an adapter."""

    distribution: str
    package: str
    tried: str
    """The version that `cargo xtask adopters` tries."""


PROJECTS = {
    "autorag": Project("AutoRAG", "autorag", "0.3.27"),
    "docling-serve": Project("docling-serve", "docling_serve", "1.38.2"),
    "lmms-eval": Project("lmms_eval", "lmms_eval", "0.7.3"),
    "sglang": Project("sglang", "sglang", "0.5.23"),
}
VARIABLE = "LOWTIDE_ADOPT"
Action = Callable[[ModuleType], None]


class Adopted:
    """A project that lowtide has adopted in this process."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.replaced: list[str] = []
        """The functions of the project that lowtide has replaced so far, by their full names."""
        self._undo: list[tuple[type | ModuleType, str, object]] = []
        self.stages: Stages | None = None
        """The stages of the project's modules, where the adapter makes stages. `stages.report()`
        says what each has used."""
        self.receipt: Receipt | None = None
        """The receipt of the project's last shutdown, where the adapter makes one."""
        self.idle: Idle | None = None
        """Free-on-idle of the project's server, where the adapter has one. `idle.last` is the receipt
        of the last idle release."""

    @property
    def version(self) -> str | None:
        """The version of the project that is installed, or None."""
        try:
            return metadata.version(PROJECTS[self.project].distribution)
        except metadata.PackageNotFoundError:
            return None

    def replace(
        self, owner: type | ModuleType, name: str, make: Callable[[object], object]
    ) -> None:
        """Replaces a function of the project by what `make` makes of it. For adapters.

        Raises AttributeError if the project has no such function.
        """
        # As it is in the class: a class method is replaced by a class method.
        original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
        self._undo.append((owner, name, original))
        setattr(owner, name, make(original))
        is_class = isinstance(owner, type)
        within = f"{owner.__module__}.{owner.__qualname__}" if is_class else owner.__name__
        self.replaced.append(f"{within}.{name}")

    def undo(self) -> None:
        """Puts the project's own functions back, and ends free-on-idle. What runs at the moment runs on
        as it is."""
        idle, self.idle = self.idle, None
        if idle is not None:
            idle.close()
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)
        self.replaced.clear()
        if _adopted.get(self.project) is self:
            del _adopted[self.project]

    def _compare_versions(self) -> None:
        """Tells if the project's version is not the one that the adapter was tried with."""
        tried, version = PROJECTS[self.project].tried, self.version
        if version is not None and version != tried:
            tell(
                f"{self.project} {version} is adopted by an adapter that was tried with {tried}. What does not"
                " fit is left as it is, with a message"
            )

    def __repr__(self) -> str:
        if self.version is None and not self.replaced:
            return f"<lowtide.Adopted {self.project}: it is not installed in this environment>"
        done = ", ".join(self.replaced) or "nothing yet: it has not been imported"
        return f"<lowtide.Adopted {self.project} {self.version}: replaced {done}>"


_adopted: dict[str, Adopted] = {}


def adopt(project: str) -> Adopted:
    """Adopts a project in this process, before or after its import. A second call changes nothing.

    Raises ValueError for a project that lowtide does not know, and AttributeError if the project has
    been imported and lacks a function that the adapter replaces.
    """
    name = project.strip().lower().replace("_", "-")
    if name == "vllm":
        raise ValueError(
            "vLLM need not be adopted: choose its sleep back end with `--sleep-mode-backend lowtide`,"
            " and shut an engine of this process down with lowtide.shutdown(runner)"
        )
    if name not in PROJECTS:
        known = ", ".join(sorted(PROJECTS))
        raise ValueError(f"lowtide cannot adopt {project!r}; it knows {known}")
    if name not in _adopted:
        adopted = Adopted(name)
        try:
            import_module(f".{name.replace('-', '_')}", __name__).adopt(adopted)
        except BaseException:
            adopted.undo()
            raise
        _adopted[name] = adopted
        when_imported(PROJECTS[name].package, lambda module: adopted._compare_versions())
    return _adopted[name]


def is_adopted(project: str) -> bool:
    """Returns whether a project is adopted in this process: hooks that cannot be taken back ask."""
    return project in _adopted


def is_wanted(project: str) -> bool:
    """Returns whether the variable LOWTIDE_ADOPT names a project."""
    return project in _named()


def _named() -> list[str]:
    words = os.environ.get(VARIABLE, "").split(",")
    return [word.strip().lower().replace("_", "-") for word in words if word.strip()]


def adopt_by_environment() -> None:
    """Adopts what LOWTIDE_ADOPT names. What cannot be adopted is told."""
    for project in _named():
        try:
            adopt(project)
        except Exception as failure:  # noqa: BLE001  Importing lowtide must not break the program.
            # A ValueError says it all.
            kind = "" if isinstance(failure, ValueError) else f"{type(failure).__name__}: "
            tell(f"{VARIABLE}={project}: {kind}{failure}")


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
                    try:
                        action(module)
                    except Exception as failure:  # noqa: BLE001  The program runs as without lowtide.
                        tell(f"{name} runs as without lowtide: {type(failure).__name__}: {failure}")

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
