"""A project with lowtide installed and LOWTIDE_ADOPT unset is as without lowtide.

    python unchanged.py PROJECT

Run in the project's environment before its own script. The project's modules are imported and every function, class
and attribute in them is noted. Then lowtide is imported and the entry points run, as the project loads them; nothing may
have changed. A second process imports lowtide first: no function in the project's modules may be lowtide's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, MethodType

# What each adapter replaces is in one of these, or in a module that they import.
MODULES = {
    "autorag": [
        "autorag.schema.base",
        "autorag.utils.util",
        "autorag.evaluator",
        "autorag.nodes.passagereranker",
    ],
    "docling-serve": ["docling_serve.app", "docling_serve.orchestrator_factory"],
    "lmms-eval": ["lmms_eval.evaluator", "lmms_eval.api.model"],
    "sglang": ["sglang.srt.managers.scheduler", "sglang.srt.plugins.hook_registry"],
    "vllm": [
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.cpu_worker",
        "vllm.device_allocator.sleep_mode_backend",
    ],
}
PACKAGES = {
    "autorag": ("autorag",),
    "docling-serve": ("docling_serve", "docling_jobkit", "docling"),
    "lmms-eval": ("lmms_eval",),
    "sglang": ("sglang",),
    "vllm": ("vllm",),
}
# vLLM's back ends are chosen by name. To have one there, lowtide puts its name on the list, and the worker asks it for a
# scope, which is vLLM's own unless the name was chosen (`try_vllm_back_end.py`).
EXPECTED = {"vllm": {"vllm.v1.worker.gpu_worker.Worker._maybe_get_memory_pool_context"}}
KEYS = {"vllm": {"cumem", "lowtide"}}


def main() -> None:
    project = sys.argv[1]
    assert "LOWTIDE_ADOPT" not in os.environ
    if "--lowtide-first" in sys.argv:
        lowtide_first(project)
        return
    assert "lowtide" not in sys.modules, "something at start-up has imported lowtide"
    import_all(project)
    assert "lowtide" not in sys.modules, "the project has imported lowtide by itself"
    before, finders = noted(project), list(sys.meta_path)
    load(project)
    after = noted(project)
    changed = {name for name in before if after.get(name) is not before[name]}
    assert changed == EXPECTED.get(project, set()), changed
    assert sys.meta_path == finders, sys.meta_path
    command = [sys.executable, __file__, project, "--lowtide-first"]
    subprocess.run(command, timeout=1800, check=True)
    print(f"unchanged: {len(before)} attributes in the modules of {project} are what they were")


def lowtide_first(project: str) -> None:
    load(project)
    import_all(project)
    import lowtide

    folder = str(Path(lowtide.__file__).parent)
    ours = {name for name, value in noted(project).items() if is_ours(value, folder)}
    assert ours == EXPECTED.get(project, set()), ours


def is_ours(value: object, folder: str) -> bool:
    """Whether a function's code is in lowtide's folder."""
    if isinstance(value, (classmethod, staticmethod, MethodType)):
        value = value.__func__
    # Only of functions: objects that stand for missing modules raise whatever they are asked.
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith(folder)


def import_all(project: str) -> None:
    for name in MODULES[project]:
        import_module(name)


def load(project: str) -> None:
    """Imports lowtide, and loads the entry points as the project does."""
    import lowtide._adopt  # noqa: F401

    if project == "sglang":
        from sglang.srt.plugins import load_plugins

        load_plugins()
    elif project == "vllm":
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        assert set(SleepModeBackendFactory._registry) == KEYS[project]


def noted(project: str) -> dict[str, object]:
    """Returns every attribute of the project's modules and of the classes in them, by its full name."""
    found: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in PACKAGES[project]:
            found.update(of_module(name, module))
    return found


def of_module(name: str, module: object) -> Iterator[tuple[str, object]]:
    for key, value in list(vars(module).items()):
        # Modules that are imported meanwhile become attributes of their packages, and counters count.
        if not (callable(value) or isinstance(value, (classmethod, staticmethod, property))):
            continue
        yield f"{name}.{key}", value
        if isinstance(value, type) and getattr(value, "__module__", None) == name:
            for inner, member in list(vars(value).items()):
                if callable(member) or isinstance(member, (classmethod, staticmethod, property)):
                    yield f"{name}.{key}.{inner}", member


if __name__ == "__main__":
    main()
