"""`why`: asks what keeps device memory or an object in use, and applies the cuts of the answer."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

from .._devices.choose import device_of
from .._native import Examination, Holder, examine
from .._runtime.data import counted
from .alone import EXAMINING
from .answer import Answer, Cut
from .mark import Mark
from .memory.listed import Listed
from .naming.cuts import Keys
from .naming.found import Naming
from .question import Question, caller_scope
from .references.look import AnyDict, full_type_name, type_name

_MOST_HELD = 12


def why(target: object = None, device: object = None, *, since: Mark | None = None) -> Answer:
    """Returns what keeps device memory in use; or, with a target, what keeps that object alive. `since`
    a mark, it is only about tensors whose memory is newer.

    Without a device it is about LOWTIDE_DEVICE, else torch's current accelerator. If there is none,
    it is about tensors in host memory, and the answer notes that.
    A target is any object: a tensor, a model, a runner.

    >>> print(lowtide.why())                 # doctest: +SKIP
    >>> print(lowtide.why(runner.model))     # doctest: +SKIP

    The interpreter's lock is held meanwhile; the answer says for how long.
    """
    name = None if target is not None and device is None else _device_name(device)
    asking = _Asking(target, name, since, is_default=device is None and device_of(None) is None)
    del target
    return asking.answer(caller_scope())


def _device_name(device: object) -> str:
    found = device_of(device)
    if found is not None:
        return found.name
    if device is None:
        return "cpu"
    # A program for machines with and without the device is not wrong (R2): the answer says it is
    # missing.
    return f"cuda:{device}" if isinstance(device, int) else str(device)


class _Asking:
    """One question. A cut asks it again when it is applied."""

    def __init__(
        self, target: object, device: str | None, since: Mark | None, *, is_default: bool
    ) -> None:
        self._device = device
        self._since = since
        self._is_default = is_default
        self._is_about_target = target is not None
        self._target = target
        self._weak: weakref.ref[object] | None = None
        if target is not None:
            try:
                self._weak = weakref.ref(target)
            except TypeError:
                pass  # A dict or a list has no weak references: only its holder can ask about it again.

    def answer(self, scope: AnyDict | None) -> Answer:
        began = time.perf_counter()
        with EXAMINING.alone():
            answer = self._answer(scope)
        answer.took_s = time.perf_counter() - began
        return answer

    def _answer(self, scope: AnyDict | None) -> Answer:
        target, self._target = self._target, None
        began = time.perf_counter()
        found = self._examine(target)
        waited_s = time.perf_counter() - began
        text = full_type_name(type(target)) if self._is_about_target else None
        del target
        name = self._device
        device = None if name in (None, "cpu") else device_of(name)
        answer = Naming(found, self._apply, scope).answer(device, name, text, waited_s)
        if self._is_default and name == "cpu":
            answer.notes += ("no accelerator was found: this is host memory",)
        return answer

    def _examine(self, target: object) -> Examination:
        targets = [target] if self._is_about_target else None
        is_new = targets is None and self._since is not None
        if is_new and self._since is not None:
            targets = self._since.grown(self._device)[0]
        question = Question(targets, grouped=is_new, device=self._device, most=_MOST_HELD)
        del target, targets
        return examine(question)

    def _apply(self, cut: Cut, keys: Keys) -> None:
        target = None
        if self._is_about_target:
            if self._weak is None:
                raise TypeError(
                    "the object cannot be found again, because it has no weak references: ask with "
                    "lowtide.why(target) and apply that answer's cut at once, or do what it says"
                )
            target = self._weak()
            if target is None:
                return
        with EXAMINING.alone():
            found = self._examine(target)
            del target
            references = Naming(found, self._apply).references(keys)
            del found
        if references is None:
            raise LookupError(f"the references of this cut have changed: {cut}. Ask again")
        while references:
            references.pop(0).cut()


def holders(
    survivors: Sequence[object] | None = None,
    besides: object = None,
    device: str | None = None,
    least: int = 0,
) -> list[Holder]:
    """Returns who holds the memory of some tensors, or of a device.

    Paths over `besides` are left out: it is known to hold them. So are holders of less than `least`
    bytes.
    """
    with EXAMINING.alone():
        listed = Listed(device) if survivors is None and device is not None else None
        if listed is not None and (known := listed.all_bytes) is not None and known < least:
            return []
        question = Question(survivors, grouped=True, device=device, most=_MOST_HELD)
        del survivors
        return _holders(question, besides, least, listed)


def _holders(
    question: Question, besides: object, least: int, listed: Listed | None
) -> list[Holder]:
    found = examine(question)
    del question
    if listed is not None:
        listed.compare(found.memory.bytes)
    naming = Naming(found, scope=caller_scope())
    named: list[Holder] = []
    for held in found.held:
        if held.bytes >= least:
            named += naming.holders(held, besides)
    for dead in found.dead:
        size = dead.size
        if dead.frozen and size.bytes >= least:
            cycle = (
                f"{counted(size.objects, 'object')} of a cycle with {type_name(type(dead.head))}"
            )
            cut = "import gc; gc.unfreeze(); gc.collect()"
            named.append(Holder("gc.freeze()", cycle, bytes=size.bytes, cut=cut))
    return named
