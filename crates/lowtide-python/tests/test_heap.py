"""The objects of a type are all found, wherever the collector has them."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextvars import Context, ContextVar, copy_context

import pytest
from lowtide._runtime.heap import Interpreter, objects_of
from lowtide._why.references.readers import references


class Base:
    """A class of which nobody else has objects."""


class Derived(Base):
    """One below it."""


@pytest.fixture(params=[False, True])
def in_place(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to the objects: the collector's lists are read, or asked for."""
    before = Interpreter.knows_generations
    if request.param and not before:
        pytest.skip("where this Python has its lists is not known")
    Interpreter.knows_generations = request.param
    yield
    Interpreter.knows_generations = before
    gc.unfreeze()


@pytest.mark.usefixtures("in_place")
def test_frozen_objects_and_others_are_found_once() -> None:
    frozen = [Base(), Derived()]
    gc.collect()
    gc.freeze()
    made = [Derived()]
    assert {*map(id, objects_of(Base))} == {*map(id, frozen + made)}
    assert len(objects_of(Base)) == 3 and len(objects_of(Derived)) == 2
    del frozen, made
    assert objects_of(Base) == []


@pytest.mark.usefixtures("in_place")
def test_nothing_is_found_where_there_is_nothing() -> None:
    assert objects_of(Base) == []
    gc.freeze()
    assert objects_of(Base) == []
    assert any(one.__name__ == __name__ for one in objects_of(types.ModuleType))


@pytest.mark.usefixtures("in_place")
def test_a_table_of_modules_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Base()
    with monkeypatch.context() as patch:
        patch.setattr("sys.modules", None)
        found = objects_of(Base)
    assert [id(one) for one in found] == [id(kept)]


@pytest.mark.usefixtures("in_place")
def test_a_value_is_taken_out_of_a_frozen_context() -> None:
    variable: ContextVar[object] = ContextVar("variable")
    held = Base()
    context: Context = copy_context()
    context.run(variable.set, held)
    gc.collect()
    gc.freeze()
    (found,) = references(context, held)
    found.cut()
    assert context[variable] is None
