"""Readers for exceptions and tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from types import GetSetDescriptorType, TracebackType
from typing import Any

from .locals import code_name, is_running
from .reference import Reference

_FRAME = "{holder}.tb_frame"
_LINKS = (("__traceback__", "traceback"), ("__cause__", "cause"), ("__context__", "context"))


def read_traceback(holder: TracebackType, held: object) -> Iterator[Reference]:
    """Yields the frame of a traceback, and the next traceback."""
    frame = holder.tb_frame
    if frame is held:
        step = f" frame {code_name(frame.f_code)} line {holder.tb_lineno}"
        if is_running(frame):
            why = f"{code_name(frame.f_code)} is running: let it return"
            yield Reference(step, "frame", why_not=why, reach=_FRAME)
        else:
            yield Reference(step, "frame", f"{_FRAME}.clear()", reach=_FRAME)
    if holder.tb_next is held:
        yield Reference(".tb_next", "traceback", "{path} = None")


def read_exception(holder: BaseException, held: object) -> Iterator[Reference]:
    """Yields the traceback and arguments of an exception, and the exceptions behind it."""
    for name, kind in _LINKS:
        getset: GetSetDescriptorType = BaseException.__dict__[name]
        if getset.__get__(holder) is held:
            yield Reference(f".{name}", kind, "{path} = None")
    args: tuple[Any, ...] = BaseException.__dict__["args"].__get__(holder)
    if args is held:
        yield Reference(".args", "arguments", "{path} = ()")
    for index, value in enumerate(tuple.__iter__(args)):
        if value is held:
            yield Reference(f".args[{index}]", "argument", "{holder}.args = ()", via=(id(args),))
