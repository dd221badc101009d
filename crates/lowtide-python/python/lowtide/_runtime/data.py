"""Plain data with named fields, and numbers as text. Answers and audits are made of it."""

from __future__ import annotations

from typing import Any, ClassVar

_MIB = 1 << 20


class Data:
    """An object with named fields that prints and compares by them."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, and theirs, as plain data."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__ if name[0] != "_"}

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({parts})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    to_dict = getattr(value, "to_dict", None)
    return value if to_dict is None else to_dict()


def mib(size: int) -> str:
    """Returns a size for people, as receipts print it."""
    return f"{size / _MIB:,.1f} MiB"


def counted(number: int, noun: str) -> str:
    """Returns a number and a noun, in the plural if the number is not 1."""
    plural = "" if number == 1 or noun == "more" else "s"
    return f"{number:,} {noun}{plural}"


def holds_nothing(value: object) -> bool:
    """Returns whether a value leads to no memory whatever the program does: `None`, a number, a text."""
    return value is None or isinstance(value, (int, float, complex, str, bytes))
