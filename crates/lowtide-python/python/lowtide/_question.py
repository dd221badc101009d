"""What is asked of the heap: the native walk knows addresses, and this is what it cannot know.

Which types are dicts, functions or tensors; where our own files are, so that our frames are not
mistaken for the program's; who can tell what a tensor holds.
"""

from __future__ import annotations

import _thread
import collections
import functools
import gc
import os
import sys
import types
from collections.abc import Sequence
from typing import Final

from ._frozen import IMMORTAL
from ._probe import autograd_edges, candidate_types, probe
from ._torch import torch

_PACKAGE: Final = os.path.dirname(__file__) + os.sep


def _view() -> type:
    """What the variables of a function come in: a dict, and a view of the frame from Python 3.13 on."""
    return type(sys._getframe().f_locals)


_VIEW: Final = _view()


class _Interpreter:
    """What the walk asks of the interpreter itself, as it was when this was imported."""

    get_objects = gc.get_objects
    get_freeze_count = gc.get_freeze_count
    current_frames = sys._current_frames
    current_exceptions = sys._current_exceptions

    # How frozen objects hang together is known for these.
    finds_frozen = (3, 10) <= sys.version_info[:2] <= (3, 13)
    # And for these how objects are laid out: the walk asks for memory ahead by it.
    knows_layout = (3, 10) <= sys.version_info[:2] <= (3, 14)
    # Up to Python 3.10 a running frame shows its variables to the collector.
    frames_show = sys.version_info < (3, 11)


_KINDS: Final[list[tuple[type, str, bool]]] = [
    (dict, "dict", False),
    (collections.OrderedDict, "dict", False),
    (collections.defaultdict, "dict", False),
    (list, "container", False),
    (set, "container", False),
    (collections.deque, "container", False),
    (tuple, "sealed", False),
    (frozenset, "sealed", False),
    (types.ModuleType, "module", True),
    (types.FunctionType, "function", False),
    (types.CellType, "cell", False),
    (types.FrameType, "frame", False),
    (types.GeneratorType, "generator", False),
    (types.CoroutineType, "generator", False),
    (types.AsyncGeneratorType, "generator", False),
    (functools._lru_cache_wrapper, "cache", False),
]


class _Sample:
    """A class written in Python: how its objects are traversed, all such objects are."""


class Question:
    """What the native walk is given. It holds its targets, and the walk knows that it does.

    Without targets it asks for all memory of a device. With them it asks who holds each; or, if
    they are tensors and `grouped`, who holds their memory.
    """

    def __init__(
        self,
        targets: Sequence[object] | None = None,
        *,
        grouped: bool = False,
        device: str | None = None,
        most: int = 1,
    ) -> None:
        self.targets = None if targets is None else list(targets)
        self.grouped = grouped
        self.device = device
        self.most = most
        self.probe = probe
        self.autograd = autograd_edges
        self.kinds = [
            *((holder, "holder", True) for holder in candidate_types()),
            *((whole, "whole", True) for whole in _wholes()),
            *_KINDS,
        ]
        self.sample = _Sample
        self.package = _PACKAGE
        self.immortal = IMMORTAL
        self.view = _VIEW
        self.thread = _thread.get_ident()
        self.interpreter = _Interpreter


def _wholes() -> list[type]:
    """What people know as one thing, whatever it is made of."""
    module = torch()
    return [] if module is None else [module.nn.Module, module.optim.Optimizer]
