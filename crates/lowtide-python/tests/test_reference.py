"""Every way in which one object holds another is named, and cut without touching its neighbours."""

from __future__ import annotations

import collections
import enum
import functools
import gc
import random
import sys
import types
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from lowtide._why.references.readers import references
from names import Held, Owner, failure, generator, only, steps


def cut_frees(holder: object, make: Any) -> None:
    """Cut the one reference from `holder` to what `make` put there; it must then be gone."""
    held = make()
    gone = weakref.ref(held)
    found = only(holder, held)
    del held
    assert gone() is not None
    found.cut()
    assert gone() is None
    found.cut()  # a second call is harmless


# Containers


def test_dict_values_and_keys() -> None:
    held, other = Held(), Held()
    holder = {"k": held, 3: other, held: 1}
    assert steps(holder, held) == ["['k']", " (key 2, <Held>)"]
    for found in references(holder, held):
        found.cut()
    assert holder == {3: other}


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, collections.deque, dict.fromkeys])
def test_no_python_runs_for_each_value_of_a_container_that_does_not_have_it(kind: Any) -> None:
    holder, lines = kind(range(100_000)), 0

    def count(*_: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = references(holder, Held())
    finally:
        sys.settrace(before)
    assert found == []
    assert lines < 10_000


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("k", "['k']"),
        (3, "[3]"),
        (2.5, "[2.5]"),
        (None, "[None]"),
        (True, "[True]"),
        (b"x", "[b'x']"),
        (("a", 1), "[('a', 1)]"),
        ((1,), "[(1,)]"),
        (enum.Enum("Colour", "RED").RED, "[Colour.RED]"),  # type: ignore[attr-defined]
        (int, "[<class int>]"),
        (Owner(), "[<Owner>]"),
        (10**60, "[<int>]"),
        ((1, 2, 3, 4, 5, 6), "[(1, 2, 3, 4, …)]"),
    ],
)
def test_keys_are_written_as_people_type_them(key: object, text: str) -> None:
    held = Held()
    assert steps({key: held}, held) == [text]


def test_long_keys_are_shortened() -> None:
    held = Held()
    assert len(steps({"k" * 500: held}, held)[0]) < 50


@pytest.mark.parametrize("kind", [list, collections.deque])
def test_elements_of_sequences(kind: Any) -> None:
    held, other = Held(), Held()
    holder = kind([other, held, None, held])
    assert steps(holder, held) == ["[1]", "[3]"]
    for found in references(holder, held):
        assert found.verb == "del {path}"
        found.cut()
    assert list(holder) == [other, None]


def test_cutting_a_list_finds_an_element_that_moved() -> None:
    holder = [Held(), Held(), Held()]
    last = references(holder, holder[2])[0]
    del holder[0]
    last.cut()
    assert len(holder) == 1


def test_tuples_and_named_tuples() -> None:
    class Pair(NamedTuple):
        left: object
        right: object

    held = Held()
    assert steps((1, held), held) == ["[1]"]
    found = only(Pair(1, held), held)
    assert found.step == ".right"
    assert found.verb is None
    assert not found.can_cut
    with pytest.raises(TypeError, match="tuple cannot be changed"):
        found.cut()


def test_sets() -> None:
    held = Held()
    assert only(frozenset([held]), held).verb is None
    holder = {held, 1}
    only(holder, held).cut()
    assert holder == {1}


def test_ordered_dict_stays_whole_after_a_cut() -> None:
    held = Held()
    holder = collections.OrderedDict(a=1, b=held, c=3)
    assert steps(holder, held) == ["['b']"]
    only(holder, held).cut()
    assert list(holder) == ["a", "c"]
    assert list(reversed(holder)) == ["c", "a"]


def test_default_factory() -> None:
    held = Held()
    holder = collections.defaultdict(held.__init__)  # type: ignore[misc]
    factory = holder.default_factory
    found = only(holder, factory)
    assert found.step == ".default_factory"
    found.cut()
    assert holder.default_factory is None


def test_mapping_proxy() -> None:
    held = Held()
    mapping = {"k": held}
    assert steps(types.MappingProxyType(mapping), held) == ["['k']"]


def test_weak_key_dictionary_holds_its_values() -> None:
    key, held = Owner(), Held()
    holder: Any = weakref.WeakKeyDictionary({key: held, held: 1})
    found = only(holder, held)
    assert (found.step, found.kind) == ("[<Owner>]", "weak value")
    found.cut()
    assert key not in holder
    assert held in holder


def test_weak_value_dictionary_holds_its_keys() -> None:
    value, key = Held(), Owner()
    holder: Any = weakref.WeakValueDictionary({key: value})
    assert references(holder, value) == []
    assert only(holder, key).kind == "key"


def test_weakref_callback() -> None:
    target, held = Owner(), functools.partial(print)
    holder = weakref.ref(target, held)
    assert steps(holder, held) == [".__callback__"]
    assert references(holder, target) == []


# Instances and classes


def test_attributes() -> None:
    held = Held()
    holder = Owner()
    holder.model = held  # type: ignore[attr-defined]
    holder.other = 1  # type: ignore[attr-defined]
    found = only(holder, held)
    assert (found.step, found.kind, found.verb) == (".model", "attribute", "{path} = None")
    found.cut()
    assert vars(holder) == {"model": None, "other": 1}


def test_attribute_cut_frees() -> None:
    holder: Any = Owner()

    def make() -> Held:
        holder.model = Held()
        return holder.model

    cut_frees(holder, make)


def test_a_cut_leaves_what_came_after_alone() -> None:
    holder: Any = Owner()
    holder.model = Held()
    found = only(holder, holder.model)
    holder.model = new = Held()
    found.cut()
    assert holder.model is new


def test_slots_through_the_bases() -> None:
    class Base:
        __slots__ = ("left",)

    class Derived(Base):
        __slots__ = ("__private", "right")

    held, holder = Held(), Derived()
    holder.left = holder.right = held
    assert sorted(steps(holder, held)) == [".left", ".right"]
    for found in references(holder, held):
        found.cut()
    assert holder.left is None


def test_dataclasses_with_and_without_slots() -> None:
    @dataclass
    class Plain:
        model: object

    @dataclass(slots=True)
    class Slotted:
        model: object

    held = Held()
    assert steps(Plain(held), held) == [".model"]
    assert steps(Slotted(held), held) == [".model"]


def test_attribute_behind_a_property_is_reached_the_long_way() -> None:
    class Shadowed:
        @property
        def model(self) -> object:
            raise AssertionError

    holder, held = Shadowed(), Held()
    vars(holder)["model"] = held
    assert steps(holder, held) == [".__dict__['model']"]


def test_class_attributes_and_metaclasses() -> None:
    class Meta(type):
        pass

    class Holder(metaclass=Meta):
        cache = Held()

    held = Holder.cache
    found = only(Holder, held)
    assert (found.step, found.kind) == (".cache", "class attribute")
    found.cut()
    assert Holder.cache is None
    assert steps(Holder, Meta) == [".__class__"]
    assert steps(Holder(), Holder) == [".__class__"]
    assert ".__bases__[0]" in steps(Holder, object)


def test_static_types_are_read_and_refuse() -> None:
    held = vars(int)["real"]
    found = only(int, held)
    assert found.step == ".real"
    with pytest.raises(TypeError, match="built in"):
        found.cut()


def test_enum_members_are_class_attributes() -> None:
    class Colour(enum.Enum):
        RED = 1

    assert steps(Colour, Colour.RED)


def test_modules() -> None:
    module, held = types.ModuleType("m"), Held()
    module.model = held  # type: ignore[attr-defined]
    found = only(module, held)
    assert (found.step, found.verb) == (".model", "del {path}")
    found.cut()
    assert not hasattr(module, "model")


# Functions and what wraps them


def test_defaults() -> None:
    held = Held()

    def serve(a: int, b: int = 1, model: object = held, *, extra: object = held) -> None: ...

    assert steps(serve, held) == ["(model=…) default", "(extra=…) default"]
    for found in references(serve, held):
        found.cut()
    assert serve.__defaults__ == (1, None)
    assert serve.__kwdefaults__ == {"extra": None}


def test_closures() -> None:
    held, kept = Held(), Held()

    def serve() -> object:
        return held, kept

    found = only(serve, held)
    assert (found.step, found.kind) == (".<closure>.held", "closure")
    assert found.verb == "{holder}.__closure__[0].cell_contents = None"
    cell = serve.__closure__[0]  # type: ignore[index]
    assert steps(cell, held) == [".cell_contents"]
    found.cut()
    assert serve() == (None, kept)


def test_attributes_annotations_and_globals_of_functions() -> None:
    held = Held()

    def serve(x: held) -> None: ...  # type: ignore[valid-type]

    serve.model = held  # type: ignore[attr-defined]
    assert steps(serve, held) == [".model"]
    assert steps(serve, globals()) == [".__globals__"]
    serve.__annotations__ = {"x": held}
    inner = serve.__annotations__
    assert steps(serve, inner) == [".__annotations__"]


def test_bound_methods() -> None:
    class Runner:
        def run(self) -> None: ...

    runner, items = Runner(), [1]
    assert steps(runner.run, runner) == [".__self__"]
    assert steps(runner.run, Runner.run) == [".__func__"]
    assert steps(items.append, items) == [".__self__"]
    assert steps(items.__len__, items) == [".__self__"]


def test_partials() -> None:
    held = Held()
    holder = functools.partial(print, held, sep=held)
    assert steps(holder, held) == [".args[0]", ".keywords['sep']"]
    assert steps(holder, print) == [".func"]
    assert steps(functools.partialmethod(print, held), held) == []
    assert steps(functools.partialmethod(print, held).args, held) == ["[0]"]


def test_descriptors_that_wrap() -> None:
    def get(self: object) -> None: ...

    assert steps(property(get), get) == [".fget"]
    assert ".__func__" in steps(staticmethod(get), get)
    assert ".__func__" in steps(classmethod(get), get)  # type: ignore[arg-type]


@pytest.mark.parametrize("maxsize", [4, None])
def test_lru_cache_results(maxsize: int | None) -> None:
    @functools.lru_cache(maxsize=maxsize)
    def load(name: str) -> Held:
        return Held()

    def make() -> Held:
        return load("a")

    held = make()
    found = only(load, held)
    assert found.step == " (functools.lru_cache) entry"
    assert (found.kind, found.verb) == ("cache entry", "{holder}.cache_clear()")
    assert steps(load, load.__wrapped__) == [".__wrapped__ (functools.lru_cache)"]
    del held, found
    cut_frees(load, make)
    assert load.cache_info().currsize == 0


@pytest.mark.parametrize("maxsize", [4, None])
def test_lru_cache_on_a_method_holds_self(maxsize: int | None) -> None:
    class Runner:
        @functools.lru_cache(maxsize=maxsize)  # noqa: B019
        def embed(self, x: int) -> int:
            return x

    def make() -> Runner:
        runner = Runner()
        runner.embed(1)
        return runner

    held = make()
    assert steps(vars(Runner)["embed"], held) == [" (functools.lru_cache) entry args[0]"]
    assert references(vars(Runner)["embed"], Held()) == []
    del held
    vars(Runner)["embed"].cache_clear()
    cut_frees(vars(Runner)["embed"], make)


# What has no name, and what must not happen


def test_hidden_references() -> None:
    held = [1]
    found = only(map(print, held), print)
    assert (found.step, found.kind, found.verb) == (" (inside map)", "hidden", None)
    with pytest.raises(TypeError, match="drop the map"):
        found.cut()


def test_nothing_where_nothing_refers() -> None:
    assert references(Owner(), Held()) == []
    assert references([], Held()) == []


def test_reference_counts_stay_as_they_were() -> None:
    held = Held()

    class Slotted:
        __slots__ = ("model",)

    def serve(model: object = held) -> object:
        return held

    slotted, owner = Slotted(), Owner()
    slotted.model = held
    owner.model = held  # type: ignore[attr-defined]
    suspended = generator(held)
    next(suspended)
    holders: list[Any] = [{"k": held}, [held], (held,), slotted, owner, serve, suspended]
    holders += [functools.partial(print, held), Owner, sys.modules[__name__], failure(held)]
    for holder in holders:
        references(holder, held)  # what is made once (an instance's dict) is made here
    before = [sys.getrefcount(one) for one in [held, *holders]]
    for holder in holders:
        references(holder, held)
    assert [sys.getrefcount(one) for one in [held, *holders]] == before


def test_every_reference_of_a_real_heap_has_an_answer() -> None:
    """Whatever the collector shows between two objects of this process is at least called hidden."""
    dice = random.Random(20261115)
    objects = gc.get_objects()
    unnamed, asked = [], 0
    for holder in dice.sample(objects, 1500):
        referents = gc.get_referents(holder)
        for held in dice.sample(referents, min(2, len(referents))):
            asked += 1
            if not references(holder, held):
                unnamed.append((type(holder), type(held)))
    assert asked > 1000
    assert unnamed == []
