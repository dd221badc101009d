"""Python for a path: the expression for the object at its end, and the statement that cuts it.

An expression begins at an object that has a name of its own (a module, a thread) and follows the
references from there. It is written twice: as people read it (`shop.cache['a']`), and as it runs
anywhere (`sys.modules['shop'].cache['a']`). Names of the module that asks stand alone if that is
`__main__`, or is not imported.
"""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextvars import Context
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from ..._runtime.heap import expression_for_all
from ..interpreter import is_current, kept
from ..references.contexts import task_name, task_type, thread_name
from ..references.look import (
    AnyDict,
    class_dict,
    instance_dict,
    is_a,
    is_name,
    item,
    literal,
    module_dict,
    module_value,
    mro,
    namespace_of,
)
from ..references.reference import Reference
from ..references.shell import OUTPUT, running_shell, user_names
from .edges import Edge
from .words import is_module_frame, repeats

_MOST_STEPS = 200
"""With more steps, Python may refuse to compile an expression."""
_HERE = "\0"
"""Stands for the namespace in which a statement runs."""
_SHOWN_REMARKS = 4
_UNREADABLE = ("gc.get_referents(", "gc.get_objects(", "hooks_dict_ref(", "functools.reduce(")
_MOST_ACTS = 2
_OWN_NAME = re.compile("Task-[0-9]+")
"""asyncio numbers its tasks, those of all event loops together."""


class Code(NamedTuple):
    """A Python expression: as people read it, and as it runs; with the modules that it needs.

    `is_names`: it stands for the dict of a module, whose items are written like attributes.
    """

    shown: str
    run: str
    imports: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()
    is_names: bool = False

    def then(self, reference: Reference) -> Code | None:
        """Returns the expression for what a reference of this object leads to."""
        reach = _as_name(reference) if self.is_names else reference.reach
        if not reach:
            return None
        shown, run = (reach.replace("{holder}", text) for text in (self.shown, self.run))
        imports = self.imports | frozenset(reference.imports if _needs(reach) else ())
        return Code(shown, run, imports)

    def text(self) -> str:
        """Returns the expression for people, with remarks in a comment."""
        remarks = f"  # {', '.join(self.remarks)}" if self.remarks else ""
        return f"{plain_names(self.shown)}{remarks}"


def is_readable(text: str) -> bool:
    """Returns whether a person would write an expression or statement: Python has no other way into some
    objects."""
    return not any(way in text for way in _UNREADABLE)


def plain_names(text: str) -> str:
    """Returns an expression in which the names of the namespace where it runs stand alone."""
    text = text.replace(f"{_HERE}.__dict__", "globals()").replace(f"{_HERE}.", "")
    return text.replace(_HERE, "sys.modules['__main__']")


class Names:
    """Where on a path objects have names of their own: expressions begin there. They are looked for once,
    however many parts of the path are written.

    `scope` is the namespace in which an expression will run.
    """

    __slots__ = ("_edges", "_found", "_limits", "_objects", "_scope", "made")

    def __init__(
        self, objects: Sequence[object], edges: Sequence[Edge], scope: AnyDict | None
    ) -> None:
        self._objects, self._edges, self._scope = objects, edges, scope
        self._found: tuple[list[int], list[int]] | None = None
        self._limits: dict[int, int] = {}
        self.made: dict[object, Any] = {}
        """What was made of parts of the path, each with the last edge."""

    def expression(self, edges: Sequence[Edge]) -> Code | None:
        """Returns the expression for the last object of some edges, or None if there is none. All but the last
        two are as on the path."""
        return self._from_name(edges) or self._from_task(edges)

    def may_reach(self, count: int) -> bool:
        """Returns whether there may be an expression for the end of so many edges of the path."""
        return any(count < self._limit(_before(at, count) or 0) for at in self._starts())

    def _from_task(self, edges: Sequence[Edge]) -> Code | None:
        """Returns the expression that begins at the last task of the path: every task can be found by its
        name, also where only code that runs in another thread has it."""
        for at in self._places(edges, self._starts()[1]):
            start = _task(self._objects[edges[at - 1].end] if at else self._objects[0])
            if start is not None:
                return _along(start, edges[at:])
        return None

    def _from_name(self, edges: Sequence[Edge]) -> Code | None:
        """Returns the expression that begins at the last object of the path with a name of its own."""
        for at in self._places(edges, self._starts()[0]):
            start = _start_at(self._objects, edges, at, self._scope)
            if start is not None:
                return _along(start, edges[at:])
        start = _kept(self._objects[0])
        return None if start is None else _along(start, edges)

    def _places(self, edges: Sequence[Edge], found: list[int]) -> Iterator[int]:
        """Yields where a name may be on some edges, the last first."""
        count = len(edges)
        yield from range(count, max(count - 2, -1), -1)
        before = _before(found, count - 2)
        if before is not None:
            yield before

    def _starts(self) -> tuple[list[int], list[int]]:
        """Returns the numbers of edges behind which an object has a name, and those behind which a task is."""
        if self._found is None:
            named: list[int] = []
            tasks: list[int] = []
            of_type: dict[int, bool] = {}
            ends = [self._objects[0], *(self._objects[edge.end] for edge in self._edges)]
            for at, value in enumerate(ends):
                may_have_one = of_type.get(id(type(value)))
                if may_have_one is None:
                    may_have_one = of_type[id(type(value))] = _may_be_named(type(value))
                is_output = at > 0 and self._edges[at - 1].reference.kind == OUTPUT
                if not (may_have_one or is_output):
                    continue
                if _start_at(self._objects, self._edges, at, self._scope) is not None:
                    named.append(at)
                if type(value) is not dict and _task(value) is not None:
                    tasks.append(at)
            self._found = named, tasks
        return self._found

    def _limit(self, at: int) -> int:
        """Returns the number of edges from which on no expression that begins behind `at` edges reaches."""
        if at not in self._limits:
            self._limits[at] = at + _writable(self._edges[at:])
        return self._limits[at]


def _before(found: list[int], most: int) -> int | None:
    """Returns the last of some numbers in order that is at most so large, or None."""
    at = bisect_right(found, most)
    return found[at - 1] if at else None


def _may_be_named(cls: type) -> bool:
    """Returns whether objects of a class may have a name of their own, or be tasks."""
    kinds = [ModuleType, dict, FrameType, type(sys.modules), type(running_shell())]
    known = (("threading", "Thread"), ("logging", "Logger"), ("asyncio.tasks", "_PyTask"))
    kinds += [task_type(), *(module_value(*one) for one in known)]
    return any(one is kind for one in mro(cls) for kind in kinds if kind is not None)


def _writable(edges: Sequence[Edge]) -> int:
    """Returns the number of edges from which on an expression over them has too many steps, or one without
    Python for it."""
    templates: list[str] = []
    ends: list[int] = []
    for number, edge in enumerate(edges):
        # What follows a name of a module is written in another way.
        reach = edge.reference.reach or ("" if number else "{holder}")
        if not reach:
            break
        templates += [reach] * edge.times
        ends.append(len(templates))
    at = steps = 0
    while at < len(templates) and steps <= _MOST_STEPS:
        period, times = repeats(templates, at)
        at += period * times
        steps += 1
    return bisect_left(ends, at) + 1 if steps > _MOST_STEPS else len(ends) + 1


def _along(start: Code, edges: Sequence[Edge]) -> Code | None:
    """Returns the expression for the end of these edges, from the expression for their beginning."""
    if not edges:
        return start
    templates: list[str] = []
    imports, remarks = set(start.imports), [*start.remarks]
    seen: set[int] = set()
    for number, edge in enumerate(edges):
        reference = edge.reference
        reach = reference.reach
        if number == 0 and start.is_names:
            reach = _as_name(reference)
        if not reach:
            return None
        templates += [reach] * edge.times
        if id(reference) in seen:
            continue
        seen.add(id(reference))
        imports.update(reference.imports if _needs(reach) else ())
        if reference.remark and not (number == 0 and start.is_names):
            remarks.append(reference.remark)
    return _chain(start, templates, imports, remarks)


def _needs(template: str) -> bool:
    # The modules of a reference may be those of its statement alone.
    return any(f"{name}." in template for name in ("gc", "sys", "collections", "contextvars"))


def _chain(start: Code, templates: list[str], imports: set[str], remarks: list[str]) -> Code | None:
    """Joins the steps of an expression. Those that come many times in a row become a loop."""
    shown, run = start.shown, start.run
    at = steps = 0
    while at < len(templates):
        period, times = repeats(templates, at)
        step = "{holder}"
        for template in templates[at : at + period]:
            step = template.replace("{holder}", step)
        if times > 1:
            imports.add("functools")
            step = f"functools.reduce(lambda at, _: {step.replace('{holder}', 'at')}, range({times}), {{holder}})"
        shown, run = (step.replace("{holder}", text) for text in (shown, run))
        at += period * times
        steps += 1
        if steps > _MOST_STEPS:
            return None
    # Remarks about a long path would be as long.
    return Code(shown, run, frozenset(imports), tuple(dict.fromkeys(remarks[-_SHOWN_REMARKS:])))


def _as_name(reference: Reference) -> str:
    """Returns the step from a module's dict, or from its frame, to one of its names."""
    if reference.kind == "local":
        name = reference.step.removeprefix(": ")
        return f"{{holder}}.{name}" if is_name(name) else ""
    step = reference.step
    if reference.kind == "item" and step[:2] == "['" and is_name(step[2:-2]):
        return f"{{holder}}.{step[2:-2]}"
    reach = reference.reach
    return reach.replace("{holder}", "{holder}.__dict__") if reach[:1] != "." else reach


def _start_at(
    objects: Sequence[object], edges: Sequence[Edge], at: int, scope: AnyDict | None
) -> Code | None:
    """Returns the name that an object of a path has by itself, or that of an output of IPython."""
    if at and edges[at - 1].reference.kind == OUTPUT:
        shown, shell = edges[at - 1].reference.step, shell_code(scope)
        name, bracket, number = shown.partition("[")
        run = f"{shell.run}.user_ns[{name!r}]{bracket}{number}" if shell.imports else shown
        return shell._replace(shown=shown, run=run)
    return _start(objects[edges[at - 1].end] if at else objects[0], scope)


def _start(value: object, scope: AnyDict | None) -> Code | None:
    """Returns the name that an object has by itself, or None."""
    if value is sys.modules:
        return Code("sys.modules", "sys.modules", frozenset({"sys"}))
    if type(value) is dict or (type(value) is FrameType and is_module_frame(value)):
        code = _module(value.f_globals if type(value) is FrameType else value, scope)
        return None if code is None else code._replace(is_names=True)
    if is_a(value, ModuleType):
        return _module(module_dict(value), scope)  # type: ignore[arg-type]
    if thread_name(value) is not None:
        return _thread(value)
    is_shell = value is not None and value is running_shell()
    return shell_code(scope) if is_shell else _logger(value)


def _module(namespace: AnyDict, scope: AnyDict | None) -> Code | None:
    """Returns the expression for a module by its dict. Names of the scope stand alone."""
    name = namespace_of(namespace)
    if namespace is scope and name in ("__main__", None):
        return Code(_HERE, _HERE)
    if name is not None:
        code = f"sys.modules[{name!r}]"
        shown = _HERE if name == "__main__" else name
        return Code(shown, code, frozenset({"sys"}))
    shell = running_shell()
    if shell is not None and user_names(shell) is namespace:
        code = "IPython.get_ipython().user_module"
        return Code(code, code, frozenset({"IPython"}))
    return None


def _thread(thread: object) -> Code | None:
    """Returns the expression for a thread that runs and whose name no other has."""
    active = module_value("threading", "_active")
    running = list(dict.values(active)) if type(active) is dict else []
    name = thread_name(thread)
    if [one for one in running if thread_name(one) == name] != [thread]:
        return None
    code = f"next(one for one in threading.enumerate() if one.name == {name!r})"
    return Code(code, code, frozenset({"threading"}), (f"thread {name!r}",))


def _task(value: object) -> Code | None:
    """Returns the expression for a task that waits and has the name that asyncio gave it."""
    name = task_name(value)
    if name is None or _OWN_NAME.fullmatch(name) is None:
        return None
    code = (
        f"next(one for one in {expression_for_all(value)} if issubclass(type(one), asyncio.Task) "
        f"and one.get_name() == {name!r})"
    )
    return Code(code, code, frozenset({"asyncio", "gc"}), (f"task {name!r}",))


def _logger(value: object) -> Code | None:
    """Returns the expression for a logger that is known by its name."""
    kind = module_value("logging", "Logger")
    if kind is None or not is_a(value, kind):
        return None
    name = item(instance_dict(value) or {}, "name")
    manager = item(class_dict(kind), "manager")
    known = item(instance_dict(manager) or {}, "loggerDict")
    is_known = type(known) is dict and type(name) is str and item(known, name) is value
    if value is module_value("logging", "root"):
        code = "logging.getLogger()"
    elif is_known and (text := literal(name)):
        code = f"logging.getLogger({text})"
    else:
        return None
    return Code(code, code, frozenset({"logging"}))


def _kept(value: object) -> Code | None:
    """Returns the expression for an object that the interpreter keeps outside of modules."""
    for one in kept():
        name = one.name
        if one.value is value:
            return Code(name, name, frozenset({name.partition("(")[0].rpartition(".")[0]}))
    if type(value) is Context and is_current(value):
        name = "contextvars.copy_context()"
        return Code(name, name, frozenset({"contextvars"}))
    return None


def shell_code(scope: AnyDict | None) -> Code:
    """Returns the expression for the shell of IPython."""
    if scope is not None and item(scope, "get_ipython") is not None:
        return Code("get_ipython()", "get_ipython()")
    return Code("IPython.get_ipython()", "IPython.get_ipython()", frozenset({"IPython"}))


class Statement(NamedTuple):
    """A Python statement, and the modules that it needs."""

    text: str
    imports: frozenset[str] = frozenset()


def is_plain(code: str) -> bool:
    """Returns whether a person would write it: two statements at most, besides imports and the collection, and no way
    around Python's own words."""
    if not is_readable(code):
        return False
    tree = ast.parse(code)
    acts = [one for one in tree.body if not isinstance(one, ast.Import)]
    acts = [one for one in acts if ast.unparse(one) not in ("gc.collect()", "gc.unfreeze()")]
    loops = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    nested = [one for one in ast.walk(tree) if isinstance(one, (ast.Lambda, *loops))]
    is_plain = not any(isinstance(one, ast.Lambda) for one in nested) and len(nested) <= 1
    return is_plain and len(acts) <= _MOST_ACTS


def joined(
    statements: Iterable[Statement], *, collect: bool = False, unfreeze: bool = False
) -> str:
    """Returns statements as one, with the imports of all; a collection comes last if it is needed, of frozen
    objects too if they are what has to go."""
    all_statements = list(statements)
    if collect and unfreeze:
        all_statements.append(Statement("gc.unfreeze()", frozenset({"gc"})))
    if collect:
        all_statements.append(Statement("gc.collect()", frozenset({"gc"})))
    imports = sorted(frozenset().union(*(one.imports for one in all_statements)))
    first = [f"import {', '.join(imports)}"] if imports else []
    return "; ".join(first + [one.text for one in all_statements])


def fill(reference: Reference, holder: Code | None, path: Code | None) -> Statement | None:
    """Returns the statement of a reference, or None if it cannot be written."""
    verb = reference.verb
    if verb is None:
        return None
    imports = frozenset(name for name in reference.imports if f"{name}." in verb)
    if "{holder}" in verb:
        if holder is None:
            return None
        verb, imports = verb.replace("{holder}", holder.run), imports | holder.imports
    if "{path}" in verb:
        if path is None:
            return None
        verb, imports = verb.replace("{path}", path.run), imports | path.imports
    return Statement(plain_names(verb), imports)
