"""lowtide on many machines: Ray supplies membership, placement and calls, lowtide supplies memory.

    ray.init(runtime_env=lowtide.ray.runtime_env(share=True))   # actors and tasks on one card take turns
    group = lowtide.ray.Group(actors)
    group.sleep()                                               # all of them or none, with receipts by actor
    group.wake()

Ray is imported by the first use. Each node keeps its own helper and agents, and works without anything central.

    environment.py   how a worker gets its agent: `runtime_env`, and what the worker itself checks
    plugin.py        the same as a plug-in of Ray's: `runtime_env={"lowtide": {…}}`
    node.py          what is asked and done on a node: agents, processes, the driver's numbers
    cluster.py       the actor of each node, the members of a group, calls with a time limit
    group.py         all or none: sleep, wake, release, pause
    sleepable.py     a mixin with the names that RL code calls
    ended.py         proof that the memory of what has ended is gone
    task.py          tasks that keep their worker
    resident.py      models by least recent use and bytes; multiplex.py is Serve's way to it
    __main__.py      `python -m lowtide.ray status`, which `lowtide ps --ray` and `lowtide top --ray` ask
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cluster import MemberReceipt
    from .ended import Ended, ended
    from .environment import check, runtime_env
    from .group import Group, GroupError, GroupReceipt
    from .multiplex import multiplexed
    from .plugin import Plugin
    from .sleepable import Paused, Sleepable
    from .task import task

__all__ = [
    "Ended",
    "Group",
    "GroupError",
    "GroupReceipt",
    "MemberReceipt",
    "Paused",
    "Plugin",
    "Sleepable",
    "check",
    "ended",
    "multiplexed",
    "runtime_env",
    "task",
]

_FILES = {
    "Ended": "ended",
    "Group": "group",
    "GroupError": "group",
    "GroupReceipt": "group",
    "MemberReceipt": "cluster",
    "Paused": "sleepable",
    "Plugin": "plugin",
    "Sleepable": "sleepable",
    "check": "environment",
    "ended": "ended",
    "multiplexed": "multiplex",
    "runtime_env": "environment",
    "task": "task",
}


def __getattr__(name: str) -> object:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    # In the place of the module of the same name, which the import has put there.
    globals()[name] = found
    return found
