"""The tour: which animals there are, and a visit to one from outside, in a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import alone
import torch

from zoo import herd
from zoo.case import DEVICE, RESULT, Case

TESTS = Path(__file__).parent.parent
LIMIT_S = 120


def animals() -> dict[str, Case]:
    """Every animal, by name. Importing one plants nothing."""
    package = importlib.import_module("zoo")
    names = [found.name for found in pkgutil.iter_modules(package.__path__) if not found.ispkg]
    modules = {name: importlib.import_module(f"zoo.{name}") for name in sorted(names)}
    return {name: module.CASE for name, module in modules.items() if hasattr(module, "CASE")}


def herds(names: Iterable[str]) -> list[tuple[str, ...]]:
    """These animals, those together that share a process. In the long tests, and on a GPU, none does."""
    known = animals()
    is_short = DEVICE == "cpu" and os.environ.get("LOWTIDE_LONG") != "1"
    sharing = [name for name in names if is_short and herd.can_join(known[name])]
    shared = [tuple(sharing[at : at + herd.MOST]) for at in range(0, len(sharing), herd.MOST)]
    return [*shared, *((name,) for name in names if name not in sharing)]


def why_not(animal: Case) -> str:
    """Why it cannot live on this machine and device, in words; empty: it can."""
    if sys.version_info < animal.python:
        return "needs Python {}.{}".format(*animal.python)
    if DEVICE != "cpu" and not torch.cuda.is_available():
        return f"ZOO_DEVICE is {DEVICE}, and torch sees no GPU"
    if animal.gpu and DEVICE == "cpu":
        return f"needs a GPU (ZOO_DEVICE=cuda): {animal.gpu}"
    if animal.cpu and DEVICE != "cpu":
        return f"lives in host memory only: {animal.cpu}"
    return ""


def run(name: str, mode: str) -> tuple[dict[str, Any], str]:
    """One visit in a fresh process: its result, and all that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"zoo.{name}", mode],
        check=False,
        cwd=TESTS,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
    )
    told = f"python -m zoo.{name} {mode} (exit {done.returncode})\n{done.stdout}"
    return _result(name, mode, done.returncode, told)


Results = dict[tuple[str, str], tuple[dict[str, Any], str]]
"""By animal and what was done to it: the result, and all that was printed."""


class Warm:
    """Visits as forks of a process that has torch already. For one thread alone. Not for a GPU: torch's
    first look at one must not be before a fork."""

    def __init__(self) -> None:
        self._processes: dict[bool, alone.Warm] = {}

    def run(self, name: str, mode: str) -> tuple[dict[str, Any], str]:
        """One visit in a fork: its result, and all that it printed."""
        return self.run_herd((name,), mode)[name, mode]

    def run_herd(self, names: Sequence[str], mode: str) -> Results:
        """One visit to all of them in a fork: the result of each, and all that was printed."""
        first, *others = names
        process = self._with(first in COMPILED)
        program = _VISIT.format(first) + alone.END_AT_ONCE
        ended = process.run(_FREEZE + program if mode == "cure" else program, mode, *others)
        told = (
            f"{shlex.join(['python', '-m', f'zoo.{first}', mode, *others])} (exit {ended.status})\n"
        )
        told += ended.output + ended.errors
        modes = herd.TOLD[mode] if others else (mode,)
        asked = [(name, mode) for name in names for mode in modes]
        return {each: _result(*each, ended.status, told) for each in asked}

    def _with(self, compiler: bool) -> alone.Warm:
        if compiler not in self._processes:
            modules = [*_MODULES, *(["torch._dynamo"] if compiler else [])]
            warm = alone.Warm(*modules, environment=_environment(), prepare=alone.ASK)
            self._processes[compiler] = warm
        return self._processes[compiler]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.close()


COMPILED = {"compiled_function", "compiled_model", "optimizer_state"}
"""Animals that import torch's compiler, which takes as long as torch does."""


_MODULES = ("zoo.herd", "lowtide._why.why", "lowtide._rungs.all")
_FREEZE = "import gc; gc.freeze()"
"""Has the collector look at the plant alone: torch's objects cannot hold it without what holds it by hand.
Not for visits of lowtide, which tells what is frozen."""
_VISIT = """
import runpy
runpy.run_module("zoo.{}", run_name="__main__", alter_sys=True)
"""


def _environment() -> dict[str, str]:
    """The same lowtide as whoever sent us; one thread each, as two animals run at a time."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    own = {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore::FutureWarning", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def _result(name: str, mode: str, status: int, told: str) -> tuple[dict[str, Any], str]:
    lines = [line for line in told.splitlines() if line.startswith(RESULT)]
    results: list[dict[str, Any]] = [json.loads(line.removeprefix(RESULT)) for line in lines]
    for result in results:
        if (result["animal"], result["mode"]) == (name, mode):
            if status != 0:
                result["problems"].append(f"it ended with exit status {status}")
            return result, told
    return {"animal": name, "mode": mode, "problems": ["it ended without a result"]}, told
