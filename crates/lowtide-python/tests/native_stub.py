"""Writes `lowtide/_native.pyi` from the Rust sources of the native module.

Names, parameters, defaults and types are those of the classes and functions in Rust. What Rust does not say (the
elements of a list, a class of the package) is in `SAYS_MORE`. To write the stub anew: `python tests/native_stub.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CRATES = Path(__file__).parents[2]
STUB = CRATES / "lowtide-python/python/lowtide/_native.pyi"

HEAD = '''"""The native part: the walk over the heap, and releases. Written by `tests/native_stub.py`; not by hand.

Data that crosses the border has a class here. What Python has to provide is a class of the package.
"""

from collections.abc import Callable, Iterable, Sequence
from types import FrameType, ModuleType
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, final

from ._devices.device import Device
from ._release.plan import PlanStep
from ._release.teardown import Step
from ._rungs.hook import Hook
from ._why.question import Question

_T = TypeVar("_T")
_DropStep: TypeAlias = PlanStep | Step
_RootKind: TypeAlias = Literal["modules", "frame", "exception", "interpreter", "native"]

__version__: str
'''

SIZE, STEPS, HOOKS = "str | int", "list[_DropStep] | None", "Iterable[Hook]"
WITNESS = "Callable[[], list[Holder]] | None"
# By the name of an attribute, of a function, or of a function with its parameter: the type.
SAYS_MORE = {
    "CutEdge.held": "object",
    "CutEdge.paths": "list[HeapPath]",
    "DeadCycle.head": "object",
    "Examination.dead": "list[DeadCycle]",
    "Examination.held": "list[HeldObject]",
    "Examination.native": "list[NativeObject]",
    "HeapCut.edges": "list[CutEdge]",
    "HeapPath.objects": "list[object]",
    "HeapPath.root": "_RootKind",
    "HeldObject.below": "list[HeapCut]",
    "HeldObject.cuts": "list[HeapCut]",
    "HeldObject.object": "Any",
    "HeldObject.paths": "list[HeapPath]",
    "Idle.__new__.to": f"{SIZE} | None",
    "Idle.watch.on_release": "Callable[[Receipt], object]",
    "Idle.watch.pause": "Callable[[float], bool]",
    "DroppedReference.chain": "list[object]",
    "DroppedReference.held": "object",
    "ShutdownPlan.drops": "list[DroppedReference]",
    "ShutdownPlan.stays": "list[object]",
    "ShutdownPlan.tensors": "list[object]",
    "NativeObject.object": "Any",
    "NodeHooks.of": "list[Any]",
    "Pauses.__new__.flush": "Callable[[], object] | None",
    "Releaser.__new__.absence": "Callable[[], str] | None",
    "Releaser.__new__.device": "Device | None",
    "Releaser.__new__.hooks": HOOKS,
    "Releaser.release.libraries": f"{HOOKS} | None",
    "Releaser.release.steps": STEPS,
    "Releaser.release.to": f"{SIZE} | None",
    "Releaser.release.witness": WITNESS,
    "Stages.__new__.budget": f"{SIZE} | None",
    "Stages.close.libraries": f"{HOOKS} | None",
    "Stages.close.steps": STEPS,
    "Stages.close.to": f"{SIZE} | None",
    "Stages.close.witness": WITNESS,
    "Stages.open.needs": f"{SIZE} | None",
    "agent_suspend": "dict[str, Any] | None",
    "examine.question": "Question",
    "exit_calls": "tuple[list[tuple[object, object, object]], object] | None",
    "frame_locals": "object",
    "frame_locals.frame": "FrameType",
    "frame_variables": "dict[str, object] | None",
    "frame_variables.frame": "FrameType",
    "kept_by": "int | str | None",
    "plan_shutdown.question": "Question",
    "listed_memory.question": "Question",
    "objects_of_type": "list[_T]",
    "objects_of_type.class_": "type[_T]",
    "objects_of_type.interpreter": "type",
    "parse_bytes.value": SIZE,
    "parse_seconds.value": "str | float",
    "tags_sleep.names": "Sequence[str]",
    "tags_wake.names": "Sequence[str]",
    "thread_state": "dict[Any, Any] | None",
    "to_dict": "dict[str, Any]",
}
PLAIN = {
    **dict.fromkeys(["u8", "u32", "u64", "usize", "i32", "i64", "isize"], "int"),
    **dict.fromkeys(["&str", "String", "PyString"], "str"),
    "f64": "float",
    "bool": "bool",
    "()": "None",
    "PyAny": "object",
    "PyType": "type",
    "PyModule": "ModuleType",
    "PyList": "list[object]",
    "Kind": "ObjectKind",
}
GENERIC = {"Vec": "list", "BTreeMap": "dict", "HashSet": "set"}


def parts(text: str) -> list[str]:
    """The parts of a text between its commas, except those within brackets."""
    found, depth, begin = [], 0, 0
    for at, one in enumerate(text):
        depth += (one in "([{<") - (one in ")]}" or (one == ">" and text[at - 1] != "-"))
        if one == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
    return [part.strip() for part in [*found, text[begin:]] if part.strip()]


def block(text: str, begin: int) -> str:
    """The text within the bracket that opens at or after a position."""
    opening = re.compile(r"[({]").search(text, begin)
    assert opening
    depth = 0
    for at in range(opening.start(), len(text)):
        depth += (text[at] in "({[") - (text[at] in ")}]")
        if depth == 0:
            return text[opening.end() : at]
    raise ValueError(text[begin : begin + 80])


def python_type(rust: str) -> str:
    """A type of Rust as Python has it."""
    rust = re.sub(r"'\w+\s*|\bmut\b", "", rust).strip()
    if rust in PLAIN:
        return PLAIN[rust]
    if rust.startswith("&"):
        return python_type(rust[1:])
    if rust.startswith("("):
        return f"tuple[{', '.join(map(python_type, parts(rust[1:-1])))}]"
    if not (generic := re.fullmatch(r"(?:\w+::)*(\w+)<(.*)>", rust, re.DOTALL)):
        return rust.rpartition("::")[2]
    name, inner = generic[1], [part for part in parts(generic[2]) if part != "_"]
    if name == "Option":
        return f"{python_type(inner[0])} | None"
    if name in GENERIC:
        return f"{GENERIC[name]}[{', '.join(map(python_type, inner))}]"
    return python_type(inner[0]) if inner else "object"  # Py, Bound, PyResult


def function(name: str, text: str, owner: str = "") -> str:
    """The line of a function, from its attributes to its body."""
    head = re.search(r"\bfn (\w+)(?:<[^(]*>)?\(", text)
    assert head, text
    given = block(text, head.end() - 1)
    after = text[head.end() + len(given) + 1 :].partition("{")[0]
    types = dict(part.split(":", 1) for part in parts(given) if re.match(r"\w+:(?!:)", part))
    types = {one: kind for one, kind in types.items() if "Python<" not in kind}
    slf = "self" in given or types.pop("slf", None)
    signature = re.search(r"signature = \(", text)
    names = parts(block(text, signature.end() - 1)) if signature else list(types)
    full = f"{owner}.{name}" if owner else name
    written = ["cls"] if name == "__new__" else ["self"] if slf else []
    for one in names:
        parameter, _, default = (part.strip() for part in one.partition("="))
        if parameter == "*":
            written.append("*")
            continue
        bare = parameter.lstrip("*")
        kind = SAYS_MORE.get(f"{full}.{bare}") or python_type(types[bare])
        if parameter.startswith("*"):
            kind = "object"
        default = {"true": "True", "false": "False"}.get(default, default)
        written.append(f"{parameter}: {kind}" + (f" = {default}" if default else ""))
    returned = re.search(r"->\s*(.*)", after.strip(), re.DOTALL)
    more = SAYS_MORE.get(full) or SAYS_MORE.get(name)
    result = more or (python_type(returned[1].strip()) if returned else "None")
    if name == "__new__":
        result = owner
    return f"def {name}({', '.join(written)}) -> {result}: ..."


class Source:
    """The classes and functions of all files, by name."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self.members: dict[str, list[str]] = {}
        self.enums: dict[str, list[str]] = {}
        for crate in ("lowtide-python", "lowtide-walk"):
            for file in sorted((CRATES / crate / "src").rglob("*.rs")):
                text = file.read_text().partition("#[cfg(test)]")[0]
                if file.name != "classes.rs":
                    self.read(re.sub(r"(?m)^\s*//.*\n", "", text))

    def read(self, text: str) -> None:
        for found in re.finditer(r"create_exception!\(\s*\w+,\s*(\w+),\s*Py(\w+)", text):
            self.items[found[1]] = f"class {found[1]}({found[2]}): ..."
        for found in re.finditer(r"(?m)^#\[pyfunction\]\n", text):
            item = text[found.start() : text.index("{\n", text.index("fn ", found.end())) + 1]
            name = re.search(r"fn (\w+)", item)
            assert name
            self.items[name[1]] = function(name[1], item)
        for found in re.finditer(
            r"(?m)^#\[pyclass\(([^\]]*)\)\]\n(?:#\[.*\]\n)*pub.* (struct|enum) (\w+)", text
        ):
            self.pyclass(found[1], found[2], found[3], text[found.end() :])
        for found in re.finditer(r"(?m)^mirror! \{\s*(\w+) ", text):
            self.enums[found[1]] = parts(block(text, found.end()))
        for found in re.finditer(
            r"(?m)^wrapper! \{(?:\s*#\[.*\])*\s*(\w+)\([^)]*\)(?:, __eq__)? \{", text
        ):
            fields = block(text, found.end() - 1)
            members = self.members.setdefault(found[1], [])
            for field in re.finditer(r"(\w+): ([^;=]+) = \|", fields):
                members.append(self.attribute(found[1], field[1], field[2]))
            self.methods(
                found[1], text[found.end() + len(fields) + 1 : text.index("\n}\n", found.end())]
            )
        for found in re.finditer(r"(?m)^#\[pymethods\]\nimpl (\w+) \{", text):
            self.members.setdefault(found[1], [])
            self.methods(found[1], block(text, found.end() - 1))

    def attribute(self, owner: str, name: str, rust: str) -> str:
        return f"{name}: Final[{SAYS_MORE.get(f'{owner}.{name}') or python_type(rust)}]"

    def pyclass(self, options: str, kind: str, name: str, rest: str) -> None:
        shown = re.search(r'name = "(\w+)"', options)
        body = block(rest, 0) if rest[0] in "({ " else ""
        if kind == "enum":
            self.enums[shown[1] if shown else name] = parts(body)
            return
        members = self.members.setdefault(name, [])
        if rest.startswith("("):
            return
        fields, is_all = [], "get_all" in options
        for field in parts(body):
            found = re.search(r"(?:pub\(crate\) )?(\w+): (.*)$", field, re.DOTALL)
            assert found
            if is_all or "pyo3(get)" in field:
                fields.append((found[1], found[2]))
        if 'new = "from_fields"' in options:
            given = ", ".join(f"{one}: {python_type(of)}" for one, of in fields)
            members.append(f"def __new__(cls, {given}) -> {name}: ...")
        members += [self.attribute(name, *field) for field in fields]

    def methods(self, owner: str, body: str) -> None:
        for found in re.finditer(
            r"(?m)^    ((?:#\[.*\n(?:        .*\n)*(?:    \)\)?\]\n)?\s*)*)fn (\w+)", body
        ):
            item = body[found.start() : body.index("{\n", body.index("fn ", found.start())) + 1]
            name = "__new__" if "#[new]" in found[1] else found[2]
            if name in ("__repr__", "__str__", "__traverse__"):
                continue
            line = function(name, item, owner)
            if "#[getter]" in found[1]:
                line = f"{name}: Final[{line.rpartition(' -> ')[2].removesuffix(': ...')}]"
            members = self.members.setdefault(owner, [])
            members.insert(0, line) if name == "__new__" else members.append(line)

    def item(self, name: str) -> str:
        if name in self.enums:
            kind = "".join(
                f"    {re.sub(r'(?<!^)(?=[A-Z])', '_', one).upper()}: ClassVar[{name}]\n"
                for one in self.enums[name]
            )
            return f"\n@final\nclass {name}:\n{kind}    def __int__(self) -> int: ...\n"
        if name in self.items:
            return self.items[name] + "\n"
        lines = "".join(f"    {line}\n" for line in self.members[name])
        return f"\n@final\nclass {name}:\n{lines}"


def generated() -> str:
    """The stub as the sources have it, formatted."""
    source, module = Source(), (CRATES / "lowtide-python/src/lib.rs").read_text()
    exported = " ".join(re.findall(r"#\[pymodule_export\]\s*use ([^;]*);", module))
    names = [PLAIN.get(name, name) for name in re.findall(r"\b\w+\b(?!::)", exported)]
    names.sort(key=lambda name: (name in source.items, name))
    text = HEAD + "".join(source.item(name) for name in names)
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", STUB, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    STUB.write_text(generated())
