"""Adopts projects in a program that `lowtide run --adopt` started. Python imports this file at its start.

The folder of this file is first in PYTHONPATH; it leaves `sys.path` here. A `sitecustomize` of the
program's own runs as without lowtide. lowtide itself is imported only when an adopted project is.
"""

import importlib.machinery
import importlib.util
import os
import sys

# Each project, and the package whose import means that a program uses it. (A test compares this with
# the list of the adapters.)
PACKAGES = {
    "autorag": "autorag",
    "docling-serve": "docling_serve",
    "lmms-eval": "lmms_eval",
    "sglang": "sglang",
}


class Adopting:
    """A finder of modules that finds none: it adopts a project just before its first import."""

    def __init__(self, projects):
        self._projects = projects

    def find_spec(self, name, path=None, target=None):
        project = self._projects.pop(name, None)
        if not self._projects and self in sys.meta_path:
            sys.meta_path.remove(self)
        if project is not None:
            try:
                import lowtide

                lowtide.adopt(project)
            except Exception as failure:  # noqa: BLE001  The program runs on.
                kind = type(failure).__name__
                sys.stderr.write(
                    f"lowtide: {project} runs as without lowtide: {kind}: {failure}."
                    f" Install lowtide in the environment of {sys.executable}.\n"
                )


def start():
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != folder]
    names = [name.strip() for name in os.environ.get("LOWTIDE_ADOPT", "").split(",")]
    projects = {PACKAGES[name]: name for name in names if name in PACKAGES}
    if projects:
        sys.meta_path.insert(0, Adopting(projects))
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        # The program's own takes the place of this one.
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


start()
