"""Whole paths read as people would write them, whatever objects the heap has in between."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import sys
import threading
import types
import weakref
from typing import Any

import names
import pytest
from lowtide._why.naming import code, edges, path, words
from lowtide._why.naming.code import joined
from lowtide._why.naming.words import Root
from lowtide._why.references import suspended

path_text, path_verb = names.path_text, names.path_verb
path_words, path_by_hand = names.path_words, names.path_by_hand

MODULES = Root("modules", "shop")
MAIN_THREAD = Root("frame", "MainThread")


class Held:
    """What the paths lead to."""


class Runner:
    """An ordinary owner."""

    model: Any
    gen: Any


def chain(*objects: Any) -> list[Any]:
    """The objects, with the dicts of modules and instances between them as the heap has them."""
    found: list[Any] = []
    for one in objects:
        found.append(one)
        has_dict = isinstance(one, (types.ModuleType, Runner, Exception))
        if has_dict and one is not objects[-1]:
            found.append(vars(one))
    return found


def test_attributes_of_modules(shop: Any) -> None:
    shop.runner, held = Runner(), Held()
    shop.runner.pooling_runner = Runner()
    shop.runner.pooling_runner.model = held
    objects = [shop, shop.runner, shop.runner.pooling_runner, held]
    for given in (objects, chain(*objects), [sys.modules, *objects], chain(*objects)[1:]):
        assert path_text(MODULES, given) == "shop.runner.pooling_runner.model"
        assert path_verb(MODULES, given) == "shop.runner.pooling_runner.model = None"
    assert path_text(MODULES, chain(shop, shop.runner)) == "shop.runner"
    assert path_verb(MODULES, chain(shop, shop.runner)) == "del shop.runner"
    assert path_text(MODULES, [shop]) == "shop"


def test_main_has_no_name() -> None:
    main = sys.modules["__main__"]
    main.lowtide_runner = runner = Runner()  # type: ignore[attr-defined]
    try:
        runner.model = Held()
        objects = [main, vars(main), runner, vars(runner), runner.model]
        root = Root("modules", "__main__")
        assert path_text(root, objects) == "lowtide_runner.model"
        assert path_text(root, objects[:3]) == "lowtide_runner"
        assert path_verb(root, objects[:3]) == "del sys.modules['__main__'].lowtide_runner"
        named = path.NamedPath(root, objects[:3], scope=vars(main))
        assert joined([named.statement()]) == "del lowtide_runner"
    finally:
        del main.lowtide_runner  # type: ignore[attr-defined]


def test_a_namespace_on_the_way_begins_the_path_anew(shop: Any) -> None:
    held = Held()
    shop.cache = {"k": held}
    exec("def serve(): ...", vars(shop))
    frame = sys._getframe()
    objects = [frame, shop.serve, vars(shop), shop.cache, held]
    assert path_text(MAIN_THREAD, objects) == "shop.cache['k']"


def test_containers(shop: Any) -> None:
    held = Held()
    shop.cache = {("a", 1): [None, (held,)]}
    middle = shop.cache["a", 1]
    objects = chain(shop, shop.cache, middle, middle[1], held)
    assert path_text(MODULES, objects) == "shop.cache[('a', 1)][1][0]"
    assert path_verb(MODULES, objects) is None
    assert path_verb(MODULES, objects[:-1]) == "del shop.cache[('a', 1)][1]"


def test_closures_and_defaults(shop: Any) -> None:
    def make(model: object) -> Any:
        def serve(batch: object = model) -> object:
            return model

        return serve

    held = Held()
    shop.serve = serve = make(held)
    cells = serve.__closure__
    objects = chain(shop, serve, cells, cells[0], held)
    text = "shop.serve.__closure__[0].cell_contents  # closure: model"
    assert path_text(MODULES, objects) == text
    assert path_words(MODULES, objects) == "shop.serve.<closure>.model"
    assert path_verb(MODULES, objects) == "shop.serve.__closure__[0].cell_contents = None"
    objects = chain(shop, serve, serve.__defaults__, held)
    assert path_text(MODULES, objects) == "shop.serve.__defaults__[0]  # default of batch"
    assert path_verb(MODULES, objects) == "shop.serve.__defaults__ = (None,)"


def test_bound_methods(shop: Any) -> None:
    class Owner:
        def run(self) -> None: ...

    owner = Owner()
    shop.callback = owner.run
    assert path_text(MODULES, chain(shop, shop.callback, owner)) == "shop.callback.__self__"


@pytest.mark.parametrize("maxsize", [8, None])
def test_lru_cache(shop: Any, maxsize: int | None) -> None:
    class Owner:
        @functools.lru_cache(maxsize=maxsize)  # noqa: B019
        def embed(self, text: str) -> Held:
            return Held()

    shop.Owner, owner = Owner, Owner()
    held = owner.embed("a")
    wrapper: Any = vars(Owner)["embed"]
    cache = next(one for one in gc.get_referents(wrapper) if type(one) is dict and len(one) == 1)
    key = next(iter(cache))
    results = [wrapper, held] if maxsize else [wrapper, cache, held]
    start = chain(shop, Owner, *results)
    assert path_text(MODULES, start) == "shop.Owner.embed (functools.lru_cache) entry"
    assert path_verb(MODULES, start) == "shop.Owner.embed.cache_clear()"
    for keys in ([wrapper, key, owner], [wrapper, cache, key, owner]):
        found = path_text(MODULES, chain(shop, Owner, *keys))
        assert found == "shop.Owner.embed (functools.lru_cache) entry args[0]"
    shop.cache = wrapper
    wrapped = chain(shop, wrapper, wrapper.__wrapped__)
    assert path_text(MODULES, wrapped) == "shop.cache.__wrapped__ (functools.lru_cache)"


def test_weak_key_dictionary(shop: Any) -> None:
    key, held = Runner(), Held()
    shop.states = states = weakref.WeakKeyDictionary({key: held})
    objects = chain(shop, states, states.data, held)  # type: ignore[attr-defined]
    for _ in range(2):
        text = "list(shop.states.data.values())[0]  # key <Runner>"
        assert path_text(MODULES, objects) == text
        assert path_words(MODULES, objects) == "shop.states[<Runner>]"
        objects.insert(3, vars(states))


# Frames, exceptions, suspended code


def test_frames() -> None:
    batch = Held()
    frame = sys._getframe()
    line = frame.f_lineno + 1
    text = path_text(MAIN_THREAD, [frame, batch])
    assert text == f"frame test_frames() line {line}: batch"
    assert path_verb(MAIN_THREAD, [frame, batch]) is None
    sentence = path_by_hand(MAIN_THREAD, [frame, batch])
    assert sentence.startswith(
        "test_frames() is running: write `del batch` there, or let it return"
    )
    runner = Runner()
    runner.model = batch
    text = path_text(Root("frame", "worker"), [frame, runner, vars(runner), batch])
    assert text == f"thread 'worker' frame test_frames() line {frame.f_lineno - 1}: runner.model"


def test_shared_variable_of_a_frame() -> None:
    batch = Runner()
    batch.model = Held()

    def inner() -> object:
        return batch

    cell = inner.__closure__[0]  # type: ignore[index]
    text = path_text(MAIN_THREAD, [sys._getframe(), cell, batch, batch.model])
    assert text.endswith(": batch.model")


def test_frame_of_a_module(shop: Any) -> None:
    code = compile("frame = sys._getframe()\nheld = Held()\ntext = ask(frame, held)", "m", "exec")
    vars(shop).update(sys=sys, Held=Held, ask=lambda f, h: path_text(MAIN_THREAD, [f, h]))
    exec(code, vars(shop))
    assert shop.text == "shop.held"


def serve(batch: object) -> None:
    raise ValueError("no")


LINE_OF_SERVE = serve.__code__.co_firstlineno + 1


def test_exceptions(shop: Any) -> None:
    held = Held()
    try:
        serve(held)
    except ValueError as caught:
        error = caught
    trace: Any = error.__traceback__
    inner = trace.tb_next
    objects = chain(shop, error)[:3] + [trace, inner, inner.tb_frame, held]
    shop.last = error
    where = f"frame serve() line {LINE_OF_SERVE}: batch"
    assert path_words(MODULES, objects) == f"shop.last, {where}"
    frame = "shop.last.__traceback__.tb_next.tb_frame"
    assert path_text(MODULES, objects) == f"{frame}.f_locals['batch']  # {where}"
    assert path_verb(MODULES, objects) == f"{frame}.clear()"
    handled = Root("exception", "MainThread")
    assert path_text(handled, objects[2:]) == f"exception ValueError being handled, {where}"
    assert path_verb(handled, objects[2:]) is None
    assert path_by_hand(handled, objects[2:]).startswith("leave the except block")
    other = path_text(Root("exception", "worker"), objects[2:])
    assert other.startswith("thread 'worker' exception ValueError being handled, frame serve()")


def rows(batch: object) -> Any:
    yield batch


def test_generators(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended, "_drops_variables", lambda how, begun: True)
    runner, held = Runner(), Held()
    shop.runner, runner.gen = runner, rows(held)
    next(runner.gen)
    line = rows.__code__.co_firstlineno + 1
    objects = chain(shop, runner, runner.gen, held)
    frame = chain(shop, runner, runner.gen, runner.gen.gi_frame, held)
    for given in (objects, frame):
        words = f"generator rows() line {line}: batch"
        assert path_words(MODULES, given) == f"shop.runner.gen, {words}"
        if given is objects:
            text = f"shop.runner.gen.gi_frame.f_locals['batch']  # {words}"
            assert path_text(MODULES, given) == text
        assert path_verb(MODULES, given) == "shop.runner.gen.close()"


def test_tasks(shop: Any) -> None:
    held = Held()

    async def inner(batch: object) -> None:
        await asyncio.sleep(60)

    async def outer() -> None:
        await inner(held)

    async def main() -> None:
        task = asyncio.create_task(outer(), name="Task-3")
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        coroutine: Any = task.get_coro()
        waiting = coroutine.cr_await
        line = inner.__code__.co_firstlineno + 1
        where = f"task 'Task-3' inner() line {line}: batch"
        shop.task, shop.loop = task, loop
        tail = [task, coroutine, waiting, held]
        assert path_words(MODULES, chain(shop, *tail)) == f"shop.task, {where}"
        code = "shop.task.get_coro().cr_await.cr_frame.f_locals['batch']"
        assert path_text(MODULES, chain(shop, *tail)).startswith(f"{code}  # coroutine inner()")
        future: Any = task._fut_waiter  # type: ignore[attr-defined]
        callback = next(
            one for one in gc.get_referents(future) if getattr(one, "__self__", 0) is task
        )
        found = path_words(MODULES, chain(shop, loop, future, callback, *tail))
        assert found == where
        # The loop runs in this thread: only it can end the task, when we have returned.
        assert path_verb(MODULES, chain(shop, *tail)) is None
        assert path_by_hand(MODULES, chain(shop, *tail)).startswith("cancel task 'Task-3'")
        assert path_text(MODULES, chain(shop, task)) == "shop.task"
        task.cancel()

    asyncio.run(main())


def test_threads() -> None:
    started, done, held = threading.Event(), threading.Event(), Held()

    def work(batch: object) -> None:
        started.set()
        done.wait(60)

    thread = threading.Thread(target=work, args=(held,), name="worker")
    thread.start()
    started.wait(60)
    try:
        active = threading._active  # type: ignore[attr-defined]
        objects = [threading, vars(threading), active, thread, vars(thread)]
        args = vars(thread).get("_args")
        if args is not None:
            text = path_text(Root("modules", "threading"), [*objects, args, held])
            thread_code = "next(one for one in threading.enumerate() if one.name == 'worker')"
            assert text == f"{thread_code}._args[0]  # thread 'worker'"
        frame = sys._current_frames()[thread.ident or 0]
        while frame.f_code.co_name != "work":
            frame = frame.f_back  # type: ignore[assignment]
        text = path_text(Root("frame", "worker"), [frame, held])
        assert text.startswith("thread 'worker' frame work() line ")
        assert text.endswith(": batch")
    finally:
        done.set()
        thread.join()


# Roots, hidden references, length


def test_other_roots() -> None:
    held = Held()
    assert path_text(Root("interpreter", "atexit"), [[held], held]) == "atexit[0]"
    assert path_text(Root("native", ""), [held]) == "native code's Held"


def test_hidden_and_unseen(shop: Any) -> None:
    shop.pages = map(print, [])
    assert path_text(MODULES, chain(shop, shop.pages, print)) == "shop.pages (inside map)"
    assert path_verb(MODULES, chain(shop, shop.pages, print)) is None
    shop.number = object()
    unseen = chain(shop, shop.number, Held())
    assert path_text(MODULES, unseen) == "shop.number (inside object)"


def test_long_paths_keep_both_ends(shop: Any) -> None:
    first = runner = Runner()
    objects: list[Any] = [shop, first]
    for _ in range(20):
        runner.a_rather_long_name = Runner()  # type: ignore[attr-defined]
        runner = runner.a_rather_long_name  # type: ignore[attr-defined]
        objects.append(runner)
    runner.model = Held()
    objects.append(runner.model)
    shop.runner = first
    whole = path_text(MODULES, chain(*objects))
    assert "…" not in whole, "it is shortened for people only"
    text = words.shorten(whole, 100)
    assert len(text) <= 100
    assert text.startswith("shop.runner.a_rather_long_name")
    assert text.endswith("a_rather_long_name.model")
    assert text.count("…") == 1
    verb = path_verb(MODULES, chain(*objects))
    assert verb is not None and "…" not in verb


def nested(shop: Any, kinds: list[int]) -> list[Any]:
    """A path of dicts and lists."""
    held: Any = Held()
    objects = [held]
    for kind in kinds:
        held = {"k": held} if kind else [held]
        objects.append(held)
    shop.first = held
    return [shop, *reversed(objects)]


def test_of_a_long_path_both_ends_are_named(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    farthest = edges._farthest
    monkeypatch.setattr(edges, "_farthest", lambda *given: (asked.append(0), farthest(*given))[1])
    dice = random.Random(3)
    objects = nested(shop, [0, 0, *(dice.randrange(2) for _ in range(5000)), 1])
    named = path.NamedPath(MODULES, objects)
    assert named.text().startswith("shop.first['k']") and named.text().endswith("[0][0]")
    assert " … 4," in named.text() and len(named.text()) < 400
    # Nobody would write the statement. The reference is cut all the same.
    part, written = named.nearest(), named.statement()
    assert part is not None and written is not None and not code.is_plain(written.text)
    assert len(asked) < 100
    (last,) = part.last_references(objects[-1])
    last.cut()
    assert objects[-2] == []


def test_paths_keep_nothing_alive(shop: Any) -> None:
    shop.runner, held = Runner(), Held()
    shop.runner.model = held
    objects = chain(shop, shop.runner, held)
    path_text(MODULES, objects)
    before = sys.getrefcount(held), sys.getrefcount(shop.runner)
    path_text(MODULES, objects)
    path_verb(MODULES, objects)
    assert (sys.getrefcount(held), sys.getrefcount(shop.runner)) == before


def test_cutting_the_last_edge(shop: Any) -> None:
    shop.runner = Runner()
    shop.runner.model = Held()
    gone = weakref.ref(shop.runner.model)
    edges.path_edges(chain(shop, shop.runner, shop.runner.model))[-1].reference.cut()
    assert gone() is None
    assert vars(shop.runner) == {"model": None}
