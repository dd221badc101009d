"""`why`: asks what keeps device memory or an object in use, and applies the cuts of the answer."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._devices.choose import device_of
from .._devices.device import Device
from .._native import Examination, Holder
from .._runtime.data import counted
from .alone import EXAMINING
from .answer import Answer, Cut
from .mark import Mark
from .memory.listed import Listed
from .naming.cuts import NamedStep, ReferenceKey, in_order
from .naming.found import Naming
from .plan import Plans, plans
from .question import Question, caller_scope
from .references.look import AnyDict, full_type_name, type_name
from .references.reference import Reference

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
    began = time.perf_counter()
    name = None if target is not None and device is None else _device_name(device)
    is_new = target is None and since is not None
    targets = None if target is None else [target]
    asking = Asking(since.grown(name)[0] if is_new and since else targets, name, grouped=is_new)
    del target, targets
    answer = asking.answer(device is None and device_of(None) is None, caller_scope(), began)
    plans().remember(answer.plan)
    return answer


def _device_name(device: object) -> str:
    found = device_of(device)
    if found is not None:
        return found.name
    if device is None:
        return "cpu"
    # A program for machines with and without the device is not wrong (R2): the answer says it is
    # missing.
    return f"cuda:{device}" if isinstance(device, int) else str(device)


class Asking:
    """One question. Its cuts ask it again when they are applied.

    It is about all memory of a device, about one object, or about what holds the memory of some tensors
    (`grouped`) other than `besides`. Of those it has weak references.
    """

    def __init__(
        self,
        targets: Sequence[object] | None,
        device: str | None,
        *,
        grouped: bool = False,
        besides: object = None,
    ) -> None:
        self._device = device
        self._grouped = grouped
        self._targets = targets
        self._weak = None if targets is None else [_weakly(one) for one in targets]
        self._besides = _weakly(besides)
        self._done: frozenset[ReferenceKey] = frozenset()
        self.until: float | None = None

    def ask(self) -> Examination:
        """Asks about the targets, which nothing of ours holds any more."""
        targets, self._targets = self._targets, None
        question = Question(
            targets, grouped=self._grouped, device=self._device, most=_MOST_HELD, until=self.until
        )
        del targets
        return question.ask()

    def answer(self, is_default: bool, scope: AnyDict | None, began: float) -> Answer:
        """Asks about a device or one object, and names what is found. It was asked at `began`."""
        is_about_one = self._targets is not None and not self._grouped
        text = full_type_name(type(self._targets[0])) if is_about_one and self._targets else None
        with EXAMINING.alone():
            asked = time.perf_counter()
            found = self.ask()
            waited_s = time.perf_counter() - asked
            name = self._device
            naming = Naming(found, self.apply, scope)
            answer = naming.answer(self._seen(), name, text, waited_s)
            del found
        if is_default and name == "cpu":
            answer.notes += ("no accelerator was found: this is host memory",)
        answer.took_s = time.perf_counter() - began
        return answer

    def _seen(self) -> Device | None:
        """Returns the device whose other memory the answer is about, too."""
        return None if self._device in (None, "cpu") else device_of(self._device)

    def apply(self, cuts: Sequence[Cut]) -> int:
        """Applies cuts of the answer and returns the bytes that this frees."""
        if self._weak is not None:
            self._targets = [one for weak in self._weak if (one := weak()) is not None]
            if not self._targets:
                return 0
        with EXAMINING.alone():
            before = Listed(self._device).bytes or 0
            steps = self._found_again(cuts)
        self._done |= {key for one in cuts for key in one._keys}
        refusals = []
        while steps:
            try:
                steps.pop(0).cut()
            except TypeError as error:
                refusals.append(str(error))
        if any(one._unfreezes for one in cuts):
            gc.unfreeze()
        gc.collect()
        if refusals:
            raise TypeError("; ".join(refusals))
        with EXAMINING.alone():
            return max(0, before - (Listed(self._device).bytes or 0))

    def _found_again(self, cuts: Sequence[Cut]) -> list[Reference]:
        """Returns the references of some cuts in the order in which they are cut. Raises LookupError if one has
        changed, and TypeError if one cannot be cut from here."""
        wanted = {key for one in cuts for key in one._keys}
        naming = Naming(self.ask(), self.apply)
        steps: dict[ReferenceKey, NamedStep] = {}
        for step in naming.steps(self._besides()):
            if step.key in wanted:
                steps.setdefault(step.key, step)
            if len(steps) == len(wanted):
                break
        for one in cuts:
            if not one._keys <= steps.keys() | self._done:
                raise LookupError(
                    f"nothing was cut, because the references of this one have changed: {one}. Ask again"
                )
        fixed = [step for step in steps.values() if not step.step.can_apply]
        if fixed:
            raise TypeError(f"nothing was cut, because only a person can: {fixed[0].step.action}")
        return [step.reference for step in in_order(list(steps.values())) if step.reference]


def _weakly(one: object) -> Callable[[], object]:
    """Returns what gives the object for as long as it is there."""
    try:
        return (lambda: None) if one is None else weakref.ref(one)
    except TypeError:
        return _without_weak_references


def _without_weak_references() -> object:
    raise TypeError(
        "the object cannot be found again, because it has no weak references: ask with "
        "lowtide.why(target) and apply that answer's cut at once, or do what it says"
    )


class Asker(NamedTuple):
    """Who asks for holders: where statements will run, and what the thread remembers."""

    scope: AnyDict | None
    plans: Plans


def here() -> Asker:
    """Returns the code that called this package."""
    return Asker(caller_scope(), plans())


def holders(
    survivors: Sequence[object] | None = None,
    besides: object = None,
    device: str | None = None,
    least: int = 0,
    asker: Asker | None = None,
) -> list[Holder]:
    """Returns who holds the memory of some tensors, or of a device. `lowtide.cut` knows them by number.

    Paths over `besides` are left out: it is known to hold them. So are holders of less than `least`
    bytes. It is `asker` that asks, if that is another thread.
    """
    asker = asker or here()
    with EXAMINING.alone():
        listed = Listed(device) if survivors is None and device is not None else None
        if listed is not None and (known := listed.all_bytes) is not None and known < least:
            return []
        asking = Asking(survivors, device, grouped=True, besides=besides)
        del survivors
        return _holders(asking, besides, least, listed, asker)


def _holders(
    asking: Asking, besides: object, least: int, listed: Listed | None, asker: Asker
) -> list[Holder]:
    found = asking.ask()
    if listed is not None:
        listed.compare(found.memory.bytes)
    naming = Naming(found, asking.apply, scope=asker.scope)
    named: list[Holder] = []
    numbered: list[Cut] = []
    for held in found.held:
        if held.bytes >= least:
            named += naming.holders(held, besides, numbered)
    for dead in found.dead:
        size = dead.size
        if dead.frozen and size.bytes >= least:
            cycle = (
                f"{counted(size.objects, 'object')} of a cycle with {type_name(type(dead.head))}"
            )
            cut = "import gc; gc.unfreeze(); gc.collect()"
            named.append(Holder("gc.freeze()", cycle, bytes=size.bytes, cut=cut))
    asker.plans.remember(naming.plan(numbered, sum(held.bytes for held in found.held)))
    return named
