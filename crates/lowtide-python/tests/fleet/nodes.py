"""A cluster of Ray with three nodes, each with its own runtime folder and its own driver double."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
BUILT = ROOT / "target" / "debug"
HERE = Path(__file__).parent
DOUBLE = BUILT / "deps" / "liblowtide_testing.so"
PLUGINS = json.dumps([{"class": "lowtide.ray.Plugin"}])
NEEDED = [
    DOUBLE,
    BUILT / "deps" / "liblowtide_agent.so",
    BUILT / "lowtide",
    BUILT / "lowtide-helper",
]


def node_environment(folder: Path, total: str) -> dict[str, str]:
    """Returns the environment of a node: a machine of its own with one GPU."""
    (folder / "lib").mkdir(parents=True)
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / "lib" / library).symlink_to(DOUBLE)
    (folder / "run").mkdir(mode=0o700)
    search = [str(HERE), *(path for path in sys.path if path)]
    return {
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "LOWTIDE_DOUBLE": f"total={total},context=1MiB,reserved=2MiB",
        "LOWTIDE_DOUBLE_STATE": str(folder / "state"),
        "LOWTIDE_NVML_LIBRARY": str(DOUBLE),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "LOWTIDE_AGENT_LIBRARY": str(NEEDED[1]),
        "LOWTIDE_HELPER_PROGRAM": str(NEEDED[3]),
        "LOWTIDE_HELPER": f"idle_ms=3000,locks={folder}",
        "PATH": f"{BUILT}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(search),
        "RAY_RUNTIME_ENV_PLUGINS": PLUGINS,
        # The tests have host memory for a device; a node has its GPU.
        "LOWTIDE_DEVICE": "",
    }


class Fleet:
    """The cluster. Nodes are named by their order."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        self.environments: list[dict[str, str]] = []
        self.cluster = Cluster()
        self.handles: list[Any] = []

    def add(self, total: str = "400MiB", **more: str) -> int:
        """Adds a node. Returns its number."""
        number = len(self.handles)
        environment = {**node_environment(self._folder / f"node{number}", total), **more}
        return self.add_with(environment)

    def add_with(self, environment: dict[str, str]) -> int:
        """Adds a node on a machine that exists."""
        number = len(self.handles)
        node = self.cluster.add_node(
            num_cpus=4,
            object_store_memory=80 << 20,
            resources={f"node{number}": 100},
            env_vars=environment,
            include_dashboard=False,
        )
        self.environments.append(environment)
        self.handles.append(node)
        return number

    def id_of(self, number: int) -> str:
        """Returns the id of a node."""
        return str(self.handles[number].node_id)

    def lowtide(self, number: int, *words: str) -> str:
        """Asks the command line on a node."""
        environment = {**os.environ, **self.environments[number]}
        done = subprocess.run(
            [str(BUILT / "lowtide"), *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout


@contextmanager
def started(folder: Path, nodes: int = 3, total: str = "400MiB") -> Iterator[Fleet]:
    """Starts nodes, and ends them with all that they have started."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: `pip install ray[serve]`")
    if not all(file.exists() for file in NEEDED):
        pytest.skip(
            "the agent is not built: `cargo build` and `cargo test -p lowtide-agent --no-run`"
        )
    fleet = Fleet(folder)
    try:
        for _ in range(nodes):
            fleet.add(total)
        ray.init(address=fleet.cluster.address, log_to_driver=False, logging_level="error")
        yield fleet
    finally:
        ray.shutdown()
        fleet.cluster.shutdown()
