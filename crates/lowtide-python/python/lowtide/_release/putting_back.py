"""Puts back references that a shutdown has dropped in vain.

Only weak references are kept meanwhile: what is put back is what somebody else holds. What nobody else
held is gone, with its memory.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

from .._why.references.look import instance_dict, pairs


def putting_back(holder: object, held: object) -> Callable[[], bool] | None:
    """Returns a function that puts `held` back where `holder` has it now, if it is still alive.

    It returns whether it did. There is none for objects without weak references, and for places that
    cannot be filled again.
    """
    try:
        alive = weakref.ref(held)
    except TypeError:
        return None
    put = _place(holder, held)
    if put is None:
        return None

    def back() -> bool:
        one = alive()
        if one is None:
            return False
        put(one)
        return True

    return back


def _place(holder: object, held: object) -> Callable[[object], object] | None:
    if isinstance(holder, dict):
        keys = [key for key, value in pairs(holder) if value is held]
        mapping = holder
        return lambda one: [dict.setdefault(mapping, key, one) for key in keys]
    if isinstance(holder, list):
        elements = holder
        places = [at for at, value in enumerate(list.__iter__(elements)) if value is held]
        return lambda one: [list.insert(elements, at, one) for at in places]
    if isinstance(holder, deque):
        queue = holder
        places = [at for at, value in enumerate(deque.__iter__(queue)) if value is held]
        return lambda one: [deque.insert(queue, at, one) for at in places]
    if isinstance(holder, set):
        return holder.add
    attributes = instance_dict(holder)
    tables = [] if attributes is None else [attributes, *_tables(attributes)]
    places_of = [(table, key) for table in tables for key, value in pairs(table) if value is held]

    def fill(one: object) -> None:
        for table, key in places_of:
            if dict.get(table, key) is None:
                dict.__setitem__(table, key, one)

    return fill if places_of else None


def _tables(attributes: dict[object, object]) -> list[dict[object, object]]:
    """Returns the tables in which a module of torch has its parts."""
    found = [dict.get(attributes, name) for name in ("_parameters", "_buffers", "_modules")]
    return [table for table in found if isinstance(table, dict)]
