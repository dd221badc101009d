"""Python for the places that readers find: attributes, items and elements.

An expression or statement that a person types runs the program's own methods. Where a class defines
such a method anew, that of its base class is called instead: it does what the reader saw.
"""

from __future__ import annotations

import dis
import functools
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from . import look
from .functions import LruCache, cell_contents
from .look import (
    AnyDict,
    class_items,
    descriptor,
    is_a,
    is_name,
    key_text,
    literal,
    module_value,
    mro,
    overrides,
    plain,
)

_THEMSELVES = (FunctionType, LruCache)
"""Types of class attributes that a class hands out as they are."""
_READS = ("__getattribute__",)
_WRITES = ("__setattr__",)


def attribute(holder: object, name: object) -> str:
    """Returns the expression for an attribute that is in the dict of an instance."""
    if overrides(type(holder), object, *_READS):
        return f"object.__getattribute__({{holder}}, '__dict__')[{_quoted(name)}]"
    if not is_name(name) or hides(holder, plain(name)):
        return f"{{holder}}.__dict__[{_quoted(name)}]"
    return f"{{holder}}.{plain(name)}"


def attribute_step(name: object) -> str:
    """Returns `.name`, or the long form for a name that cannot follow a dot."""
    return f".{plain(name)}" if is_name(name) else f".__dict__[{key_text(name)}]"


def set_attribute(holder: object, name: object) -> str:
    """Returns the statement that sets such an attribute to None."""
    reads, writes = (overrides(type(holder), object, *names) for names in (_READS, _WRITES))
    if reads or (writes and not _is_model(holder)) or not is_name(name):
        place = "object.__getattribute__({holder}, '__dict__')" if reads else "{holder}.__dict__"
        return f"{place}[{_quoted(name)}] = None"
    return "{path} = None"


def hides(holder: object, name: str) -> bool:
    """Returns whether the class has something of this name that comes before the instance's dict."""
    entry = descriptor(holder, name)
    return entry is not None and _has(type(entry), "__set__", "__delete__")


def is_cached(holder: object, name: object) -> bool:
    """Returns whether an attribute is the result of a `functools.cached_property`."""
    if type(name) is not str or overrides(type(holder), object, *_READS, "__delattr__"):
        return False
    entry = descriptor(holder, name)
    return entry is not None and is_a(entry, functools.cached_property)


def is_override(holder: object, name: object, value: object) -> bool:
    """Returns whether an attribute is a function that stands in front of a method of the class."""
    if type(name) is not str or overrides(type(holder), object, *_READS):
        return False
    if overrides(type(holder), object, *_WRITES, "__delattr__") and not _is_model(holder):
        return False
    kinds = (FunctionType, MethodType, functools.partial)
    return (
        any(type(value) is kind for kind in kinds)
        and type(descriptor(holder, name)) is FunctionType
    )


def is_descriptor(value: object) -> bool:
    """Returns whether a class attribute answers with something else than itself."""
    return type(value) not in _THEMSELVES and _has(type(value), "__get__")


def _has(cls: type, *names: str) -> bool:
    return any(
        type(key) is str and key in names for base in mro(cls) for key, _ in class_items(base)
    )


def _is_model(holder: object) -> bool:
    # torch's own method keeps the tables of a module in order, and takes None.
    module = module_value("torch.nn.modules.module", "Module")
    return module is not None and is_a(holder, module)


def _quoted(name: object) -> str:
    return literal(name) or repr(plain(name))


def original_value(namespace: AnyDict, name: object, value: object) -> tuple[str, object] | None:
    """Returns the expression for what a name of a module stood for before, and its value, if they are known.

    Without the name, the program would fail: `sys.excepthook`, or a function that was wrapped.
    """
    if type(name) is not str or not is_name(name):
        return None
    module = plain(look.item(namespace, "__name__"))
    kept = f"__{name}__" if module in ("sys", "threading") else _DEFAULTS.get((module, name))
    before = None if kept is None else look.item(namespace, kept)
    if before is not None and before is not value:
        return f"{{holder}}.{kept}", before
    found = wrapped(name, value)
    if found is None and not is_a(value, ModuleType) and _is_assigned(namespace, name):
        return "None", None
    return found


_DEFAULTS: dict[tuple[str, str], str] = {
    ("logging", "_logRecordFactory"): "LogRecord",
    ("logging", "_loggerClass"): "Logger",
}
"""Names of modules that a function sets, and the names for what they stand for at first."""


def _is_assigned(namespace: AnyDict, name: str) -> bool:
    """Returns whether a function of a module assigns to one of its names. Its functions then expect None
    there, rather than no name at all."""
    values: list[Any] = [value for _, value in look.pairs(namespace)]
    module = look.item(namespace, "__name__")
    for cls in [one for one in values if is_a(one, type)]:
        if look.item(look.class_dict(cls), "__module__") is module:
            values += [value for _, value in class_items(cls)]
    for value in values:
        is_wrapper = type(value) is staticmethod or type(value) is classmethod
        function = value.__func__ if is_wrapper else value
        is_own = type(function) is FunctionType and function.__globals__ is namespace
        if is_own and _assigns(function.__code__, name):
            return True
    return False


def _assigns(code: CodeType, name: str) -> bool:
    """Returns whether code has `global name` and assigns to it."""
    if name in code.co_names:
        for one in dis.get_instructions(code):
            if one.opname == "STORE_GLOBAL" and one.argval == name:
                return True
    return any(_assigns(one, name) for one in code.co_consts if type(one) is CodeType)


def wrapped(name: str, value: object) -> tuple[str, object] | None:
    """Returns the expression for the function of the same name that a function wraps, and that function."""
    if type(value) is not FunctionType or value.__closure__ is None:
        return None
    for index, cell in enumerate(value.__closure__):
        before: Any = cell_contents(cell)
        is_function = type(before) is FunctionType or type(before) is BuiltinFunctionType
        if is_function and before is not value and plain(before.__name__) == name:
            return f"{{path}}.__closure__[{index}].cell_contents", before
    return None


def member(holder: object, name: str) -> str:
    """Returns the expression for a slot."""
    if overrides(type(holder), object, *_READS):
        return f"object.__getattribute__({{holder}}, {name!r})"
    return f"{{holder}}.{name}"


def set_member(holder: object, name: str) -> str:
    """Returns the statement that sets a slot to None."""
    if overrides(type(holder), object, *_READS, *_WRITES):
        return f"object.__setattr__({{holder}}, {name!r}, None)"
    return "{path} = None"


def item(holder: object, key: object, position: int) -> tuple[str, str]:
    """Returns the expression for a value of a dict, and the statement that deletes it."""
    text = literal(key)
    reads = overrides(type(holder), dict, "__getitem__", "__missing__")
    deletes = overrides(type(holder), dict, "__delitem__")
    if text is None:
        reach = f"list(dict.values({{holder}}))[{position}]"
        if not overrides(type(holder), dict, "values"):
            reach = f"list({{holder}}.values())[{position}]"
        text, _ = key_at(holder, position)
    else:
        reach = f"dict.__getitem__({{holder}}, {text})" if reads else f"{{holder}}[{text}]"
        if not reads and not deletes:
            return reach, "del {path}"
    cut = f"dict.__delitem__({{holder}}, {text})" if deletes else f"del {{holder}}[{text}]"
    return reach, cut


def key_at(holder: object, position: int) -> tuple[str, str]:
    """Returns the expression for a key of a dict, and the statement that deletes it."""
    if overrides(type(holder), dict, "__iter__"):
        reach = f"list(dict.keys({{holder}}))[{position}]"
    else:
        reach = f"list({{holder}})[{position}]"
    if overrides(type(holder), dict, "__delitem__"):
        return reach, f"dict.__delitem__({{holder}}, {reach})"
    return reach, f"del {{holder}}[{reach}]"


def element(holder: object, base: Any, index: int) -> tuple[str, str]:
    """Returns the expression for an element of a list or deque, and the statement that deletes it."""
    name = base.__name__ if base is list else f"collections.{base.__name__}"
    reach, cut = f"{{holder}}[{index}]", "del {path}"
    if overrides(type(holder), base, "__getitem__"):
        reach, cut = f"{name}.__getitem__({{holder}}, {index})", f"del {{holder}}[{index}]"
    if overrides(type(holder), base, "__delitem__"):
        cut = f"{name}.__delitem__({{holder}}, {index})"
    return reach, cut


def class_attribute(cls: type, name: object, value: object) -> tuple[str, str]:
    """Returns the expression for an attribute of a class, and the statement that sets it to None."""
    meta = type(cls)
    reads = overrides(meta, type, *_READS)
    if reads:
        reach = f"type.__getattribute__({{holder}}, '__dict__')[{_quoted(name)}]"
    elif not is_name(name) or is_descriptor(value) or hides(cls, plain(name)):
        reach = f"{{holder}}.__dict__[{_quoted(name)}]"
    else:
        reach = f"{{holder}}.{plain(name)}"
    if reads or overrides(meta, type, *_WRITES) or reach != f"{{holder}}.{name}":
        return reach, f"type.__setattr__({{holder}}, {_quoted(name)}, None)"
    return reach, "{path} = None"


_EMPTY = {"_args": "()", "args": "()", "_kwargs": "{}", "kwargs": "{}"}


def ended_thread(holder: object, name: object) -> str | None:
    """Returns the statement for an argument that a thread keeps, or None for other attributes."""
    thread = module_value("threading", "Thread")
    if thread is None or type(name) is not str or not is_a(holder, thread):
        return None
    timer = module_value("threading", "Timer")
    if is_a(holder, timer) and name in ("args", "kwargs", "function"):
        empty = _EMPTY.get(name, "None")
        return f"{{holder}}.cancel(); {{path}} = {empty}"
    return f"{{path}} = {_EMPTY[name]}" if name in ("_args", "_kwargs") else None


def without_initializer(holder: object, name: object) -> str | None:
    """Returns the statement that takes the initializer with its arguments from a pool of threads; None for
    other attributes. With the initializer alone, new threads would fail."""
    pool = module_value("concurrent.futures.thread", "ThreadPoolExecutor")
    if pool is None or not is_a(holder, pool):
        return None
    if name == "_initargs":
        return "{holder}.__dict__.update(_initializer=None, _initargs=())"
    # Since Python 3.14 a function makes the context of each thread, and has both.
    is_context = name == "_create_worker_context"
    return "{path} = type({holder}).prepare_context(None, ())[0]" if is_context else None
