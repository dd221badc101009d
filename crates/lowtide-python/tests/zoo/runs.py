"""Which cases there are, and a run of one in a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import alone
import torch

from zoo.case import DEVICE, RESULT, Case

TESTS = Path(__file__).parent.parent
LIMIT_S = 120


def cases() -> dict[str, Case]:
    """Every case, by the name of its program. Importing one allocates nothing."""
    package = importlib.import_module("zoo")
    names = [found.name for found in pkgutil.iter_modules(package.__path__) if not found.ispkg]
    modules = {name: importlib.import_module(f"zoo.{name}") for name in sorted(names)}
    return {name: module.CASE for name, module in modules.items() if hasattr(module, "CASE")}


def why_not(case: Case) -> str:
    """Why it cannot run on this machine and device, in words; empty: it can."""
    if sys.version_info < case.python:
        return "needs Python {}.{}".format(*case.python)
    if DEVICE != "cpu" and not torch.cuda.is_available():
        return f"ZOO_DEVICE is {DEVICE}, and torch sees no GPU"
    if case.gpu and DEVICE == "cpu":
        return f"needs a GPU (ZOO_DEVICE=cuda): {case.gpu}"
    if case.cpu and DEVICE != "cpu":
        return f"runs in host memory only: {case.cpu}"
    return ""


def run(name: str, mode: str) -> tuple[dict[str, Any], str]:
    """One run in a fresh process: its result, and all that it printed."""
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


class Warm:
    """Runs as forks of a process that has torch already. For one thread alone. Not for a GPU: torch's
    first look at one must not be before a fork."""

    def __init__(self) -> None:
        self._processes: dict[bool, alone.Warm] = {}

    def run(self, name: str, mode: str) -> tuple[dict[str, Any], str]:
        """One run in a fork: its result, and all that it printed."""
        program = _RUN.format(name) + alone.END_AT_ONCE
        ended = self._with(name in COMPILED).run(program, mode)
        told = f"python -m zoo.{name} {mode} (exit {ended.status})\n{ended.output}{ended.errors}"
        return _result(name, mode, ended.status, told)

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
"""Programs that import torch's compiler, which takes as long as torch does."""

_MODULES = ("zoo.modes", "lowtide._why.why", "lowtide._rungs.all")
_RUN = """
import runpy
runpy.run_module("zoo.{}", run_name="__main__", alter_sys=True)
"""


def _environment() -> dict[str, str]:
    """The same lowtide as whoever sent us; one thread each, as two programs run at a time."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    own = {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore::FutureWarning", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def _result(name: str, mode: str, status: int, told: str) -> tuple[dict[str, Any], str]:
    lines = [line for line in told.splitlines() if line.startswith(RESULT)]
    results: list[dict[str, Any]] = [json.loads(line.removeprefix(RESULT)) for line in lines]
    for result in results:
        if (result["program"], result["mode"]) == (name, mode):
            if status != 0:
                result["problems"].append(f"it ended with exit status {status}")
            return result, told
    return {"program": name, "mode": mode, "problems": ["it ended without a result"]}, told
