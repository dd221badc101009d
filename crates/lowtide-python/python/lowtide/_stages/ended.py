"""What stands where a part of a model was that its stage has shut down: a use of it names the stage."""

from __future__ import annotations

from typing import Any, NoReturn

from .._why.references.look import AnyDict, instance_dict, is_a, item, pairs

Parts = list[tuple[str, str]]
"""The parts of a model: the attribute with their table, if they are in one, and the name."""
_TABLES = ("_parameters", "_buffers", "_modules")


class Ended:
    """Raises RuntimeError when it is used. It can be printed, copied and pickled."""

    def __init__(self, stage: str) -> None:
        self._lowtide_stage = stage

    def __repr__(self) -> str:
        return f"(ended with stage {self._lowtide_stage!r})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self()

    def __call__(self, *_arguments: object, **_keywords: object) -> NoReturn:
        raise RuntimeError(
            f"this model ended with stage {self._lowtide_stage!r}, in which it was made: use it inside of"
            " the stage, or keep it with owns=False"
        )

    __len__ = __iter__ = __getitem__ = __call__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        for one in (*given, *(named or {}).values()):
            if isinstance(one, cls):
                one()
        return NotImplemented


def parts_of(module: object) -> Parts:
    """Returns the names of what a module of torch or a session has, by table."""
    attributes = instance_dict(module) or {}
    tables = [(name, item(attributes, name)) for name in _TABLES]
    found = [(name, key) for name, table in tables if is_a(table, dict) for key in present(table)]
    return found + [("", name) for name in present(attributes) if name == "_sess"]


def present(table: AnyDict) -> list[str]:
    """Returns the names in a table under which there is something."""
    return [key for key, part in pairs(table) if part is not None and type(key) is str]


def end(module: object, parts: Parts, stage: str) -> None:
    """Lets a use of a module raise an error if it has lost some of its parts."""
    attributes, ended = instance_dict(module) or {}, Ended(stage)
    for name, key in parts:
        table = item(attributes, name) if name else attributes
        if is_a(table, dict) and dict.get(table, key) is None:
            table[key] = attributes["forward"] = ended
