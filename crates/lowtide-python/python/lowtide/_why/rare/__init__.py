"""What keeps memory in few programs: calls at exit, profile functions of other threads, audit hooks,
callbacks of `sys.monitoring`, tables of codecs, hooks of autograd's nodes.

No function gives them. They are read from the interpreter's state, or recognised by what is in them. Seen on
CPython 3.10 to 3.14; where a version is built otherwise, they are named as what native code holds. The rest of
`why` uses only the functions of this file.
"""

from __future__ import annotations

from typing import NamedTuple

from ..references.reference import Reference
from . import exit_calls, registries
from .exit_calls import is_list, list_number, without_list
from .registries import advice, entry

__all__ = ["advice", "entry", "is_list", "list_number", "name_of", "undo", "without_list"]


class Undo(NamedTuple):
    """What unregisters a function; it is cut like a reference from the interpreter to the function. `goes`
    says what the program loses, if that is more than the function."""

    function: object
    reference: Reference
    goes: str


def name_of(value: object) -> str | None:
    """Returns what a registry or something registered is called, or None if it is neither."""
    return exit_calls.call_name(value) or registries.registry_name(value)


def undo(name: str, first: object) -> Undo | None:
    """Returns what unregisters the object of this name with which a path begins, or None."""
    call = exit_calls.call_of(first) if "exit callback " in name else None
    if call is not None:
        goes = exit_calls.goes_with(call.function)
        return Undo(call.function, exit_calls.exit_reference(call), goes)
    reference = registries.undo(name, first)
    return None if reference is None else Undo(first, reference, "")
