"""One way in which an object refers to another, and how it is cut.

Names and cuts live together because they say the same thing twice: the verb tells a person what to
do, and `cut` does exactly that. A cut looks again before it acts, so that it never removes something
that was put into the same place meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

from ._look import class_dict, is_a, is_name, item, key_text, pairs, plain, type_name


class Reference:
    """One way in which `holder` refers to `held`.

    `step` continues a path, `kind` says what sort of reference it is, `verb` is what a person does
    about it with `{path}` (up to and with this step) and `{holder}` (up to it) to be filled in, or
    None where nothing can be done here. `via` are the ids of the objects in between that nobody
    types: the dict of an instance, the cell of a closure. A reference keeps both ends alive until
    it is cut or dropped.
    """

    __slots__ = ("_act", "_why_not", "kind", "step", "verb", "via")

    def __init__(
        self,
        step: str,
        kind: str,
        verb: str | None = None,
        act: Callable[[], None] | None = None,
        *,
        why_not: str = "",
        via: tuple[int, ...] = (),
    ) -> None:
        self.step = step
        self.kind = kind
        self.verb = verb
        self.via = via
        self._act = act
        self._why_not = why_not

    @property
    def can_cut(self) -> bool:
        """Whether `cut` can do it; some verbs are only for people to follow."""
        return self._act is not None

    def cut(self) -> None:
        """Do what the verb says. A second call does nothing.

        Raises TypeError, with what to do instead, where the reference cannot be cut from here.
        """
        act, self._act = self._act, None
        if act is None:
            if self._why_not == _DONE:
                return
            raise TypeError(self._why_not or f"this {self.kind} cannot be cut: let its holder go")
        refusal: str | None = None
        try:
            act()
        except Exception as error:  # noqa: BLE001
            # The program's own __hash__, close() or setter may raise anything.
            refusal = _words(error)
        if refusal is not None:
            # Raised outside the handler, so that the new error does not keep the old one's frames.
            self._act = act
            raise TypeError(f"this {self.kind} was not cut: {refusal}")
        self._why_not = _DONE

    def __repr__(self) -> str:
        return f"Reference({self.step!r}, {self.kind!r}, {self.verb!r})"


_DONE = "done"


def _words(error: Exception) -> str:
    text = error.args[0] if error.args and type(error.args[0]) is str else ""
    return text if type(error) is TypeError and text else f"{type_name(type(error))}: {text}"


def del_item(mapping: dict[Any, Any], key: object, held: object) -> Callable[[], None]:
    """Delete `mapping[key]` if it is still `held`."""

    def act() -> None:
        for other, value in pairs(mapping):
            if other is key:
                if value is held or key is held:
                    _delete(mapping, key)
                return

    return act


def _delete(mapping: dict[Any, Any], key: object) -> None:
    # An OrderedDict keeps a second book that dict's own method would leave behind.
    if is_a(mapping, OrderedDict):
        OrderedDict.__delitem__(mapping, key)
    else:
        dict.__delitem__(mapping, key)


def none_item(mapping: dict[Any, Any], key: object, held: object) -> Callable[[], None]:
    """Put None where `held` stands in `mapping`."""

    def act() -> None:
        for other, value in pairs(mapping):
            if other is key and value is held:
                if is_a(mapping, OrderedDict):
                    OrderedDict.__setitem__(mapping, key, None)
                else:
                    dict.__setitem__(mapping, key, None)
                return

    return act


def del_element(sequence: Any, methods: type, index: int, held: object) -> Callable[[], None]:
    """Delete one element of a list or deque; earlier cuts may have moved it."""
    base: Any = methods

    def act() -> None:
        found = [at for at, value in enumerate(base.__iter__(sequence)) if value is held]
        if found:
            nearest = min(found, key=lambda at: abs(at - index))
            base.__delitem__(sequence, nearest)

    return act


def discard(group: set[Any], held: object) -> Callable[[], None]:
    """Take one element out of a set."""
    return lambda: set.discard(group, held)


def clear_member(holder: object, member: MemberDescriptorType, held: object) -> Callable[[], None]:
    """Put None into a slot if it still holds `held`."""

    def act() -> None:
        try:
            now = member.__get__(holder, type(holder))
        except AttributeError:
            return
        if now is held:
            member.__set__(holder, None)

    return act


def none_class_attribute(cls: type, name: str, held: object) -> Callable[[], None]:
    """Put None into a class attribute, past the metaclass."""

    def act() -> None:
        if item(class_dict(cls), name) is held:
            type.__setattr__(cls, name, None)

    return act


def attribute_step(name: object) -> str:
    """`.name`, or the long way round for what cannot stand after a dot."""
    return f".{plain(name)}" if is_name(name) else f".__dict__[{key_text(name)}]"
