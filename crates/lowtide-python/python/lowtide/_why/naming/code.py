"""Python for a path: the expression for the object at its end, and the statement that cuts it.

An expression begins at an object that has a name of its own (a module, a thread) and follows the
references from there. It is written twice: as people read it (`shop.cache['a']`), and as it runs
anywhere (`sys.modules['shop'].cache['a']`). Names of the module that asks stand alone if that is
`__main__`, or is not imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from contextvars import Context
from types import FrameType, ModuleType
from typing import NamedTuple

from ..interpreter import is_current, kept
from ..references.contexts import task_name, thread_name
from ..references.functions import function_name
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
    namespace_of,
)
from ..references.reference import UNWRITTEN, Reference
from ..references.shell import OUTPUT, running_shell, user_names
from .edges import Edge
from .words import is_module_frame

_HERE = "\0"
"""Stands for the namespace in which a statement runs."""
_SHOWN_REMARKS = 4
_UNREADABLE = ("gc.get_referents(", UNWRITTEN)
_MOST_ACTS = 2


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
    """Where on a path objects have names of their own: expressions begin there. Each object is asked once.

    `scope` is the namespace in which an expression will run.
    """

    __slots__ = ("_known", "_objects", "_scope")

    def __init__(self, objects: Sequence[object], scope: AnyDict | None) -> None:
        self._objects, self._scope = objects, scope
        self._known: dict[int, Code | None] = {}

    def expression(self, edges: Sequence[Edge]) -> Code | None:
        """Returns the expression for the last object of some edges, or None if there is none."""
        return self._from_name(edges) or self._from_task(edges)

    def _from_name(self, edges: Sequence[Edge]) -> Code | None:
        """Returns the expression that begins at the last object of the path with a name of its own."""
        for at in range(len(edges), -1, -1):
            start = self._at(edges[at - 1] if at else None)
            if start is not None:
                return _along(start, edges[at:])
        start = _kept(self._objects[0])
        return None if start is None else _along(start, edges)

    def _at(self, edge: Edge | None) -> Code | None:
        """Returns the name of the object at the end of an edge, or of the first object."""
        if edge is not None and edge.reference.kind == OUTPUT:
            return _output(edge.reference.step, self._scope)
        end = 0 if edge is None else edge.end
        if end not in self._known:
            self._known[end] = _start(self._objects[end], self._scope)
        return self._known[end]

    def _from_task(self, edges: Sequence[Edge]) -> Code | None:
        """Returns what stands for an expression that begins at the last task of the path, whoever has it."""
        for at in range(len(edges), -1, -1):
            name = task_name(self._objects[edges[at - 1].end if at else 0])
            if name is not None:
                text = f"task {name!r}{UNWRITTEN}"
                return _along(Code(text, text), edges[at:])
        return None


def _along(start: Code, edges: Sequence[Edge]) -> Code | None:
    """Returns the expression for the end of these edges, from the expression for their beginning."""
    code, remarks = start, [*start.remarks]
    for edge in edges:
        if edge.reference.remark and not code.is_names:
            remarks.append(edge.reference.remark)
        following = code.then(edge.reference)
        if following is None:
            return None
        code = following
    # Remarks about a long path would be as long.
    return code._replace(remarks=tuple(dict.fromkeys(remarks[-_SHOWN_REMARKS:])))


def _needs(template: str) -> bool:
    # The modules of a reference may be those of its statement alone.
    return any(f"{name}." in template for name in ("gc", "sys", "collections", "contextvars"))


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


def _output(shown: str, scope: AnyDict | None) -> Code:
    """Returns the expression for an output of IPython."""
    shell = shell_code(scope)
    name, bracket, number = shown.partition("[")
    run = f"{shell.run}.user_ns[{name!r}]{bracket}{number}" if shell.imports else shown
    return shell._replace(shown=shown, run=run)


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
            remarks = (function_name(value),) if callable(value) else ()
            return Code(name, name, frozenset({name.partition("(")[0].rpartition(".")[0]}), remarks)
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
    acts = [
        one
        for one in acts
        if ast.get_source_segment(code, one) not in ("gc.collect()", "gc.unfreeze()")
    ]
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
