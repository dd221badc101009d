"""No files of a crate or of this package import one another in a circle, and no crate depends on one
above it.

A file that can be read without those above it can be understood alone. An item of Rust's test modules
may use anything. Imports that only a type checker sees count for nothing.
"""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = Path(__file__).parents[1] / "python" / "lowtide"

pytestmark = pytest.mark.skipif(not PACKAGE.exists(), reason="the sources are not here")

LAYERS = [
    "lowtide-types",
    "lowtide-device",
    "lowtide-pool",
    "lowtide-release",
    "lowtide",
    "lowtide-proto",
    "lowtide-helper",
    "lowtide-agent",
    "lowtide-heap",
    "lowtide-walk",
    "lowtide-report",
    "lowtide-python",
    "lowtide-cli",
    "lowtide-testing",
    "lowtide-bench",
    "xtask",
]
"""The crates, those below first. The tests of each may use `lowtide-testing`."""
CRATES = {
    re.findall(r'^name = "(.+)"', manifest.read_text(), re.MULTILINE)[0]: manifest.parent
    for manifest in [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("*/Cargo.toml")]
}

Graph = dict[str, set[str]]


def assert_no_circle(imports: Graph) -> None:
    assert imports, "there are files"
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def rust_imports(source: Path) -> Graph:
    """Each file, and those whose items it names. An item that a `mod.rs` re-exports is its file's."""
    texts = {}
    for path in source.rglob("*.rs"):
        parts = path.relative_to(source).with_suffix("").parts
        text, _, _tests = path.read_text().partition("#[cfg(test)]")
        file = "/".join(parts[:-1] if parts[-1] == "mod" else parts)
        texts[file] = re.sub(r"//.*|pub\(in [^)]*\)", "", text)
    exports: dict[str, dict[str, str]] = {}
    for file, text in texts.items():
        uses = r"\bpub(?:\([^)]*\))? use (\w+)::(?:\w+::)*(\w+|\{[^;]*?\})"
        exports[file] = {
            item: f"{file}/{inner}"
            for inner, items in re.findall(uses, text)
            for item in re.findall(r"\w+", items)
            if f"{file}/{inner}" in texts
        }

    def named(file: str, path: list[str]) -> str | None:
        """The file that a path leads to: the longest part of it that is one."""
        for length in range(len(path), 0, -1):
            one = "/".join(path[:length])
            if one in texts and one != "lib":
                found = exports[one].get(path[length], one) if length < len(path) else one
                return None if found == file else found
        return None

    found: Graph = {}
    for file, text in texts.items():
        found[file] = set()
        uses = r"\b(crate|super|self)::((?:\w+::)*)(\w+|\{[^;]*?\})"
        for start, between, last in re.findall(uses, text):
            here = file.split("/")
            base = {"crate": [], "super": here[:-1], "self": here}[start]
            for part in between.split("::")[:-1]:
                base = base[:-1] if part == "super" else [*base, part]
            for inner in re.findall(r"\w+(?:::\w+)?", last):
                other = named(file, base + inner.split("::"))
                found[file] |= {other} if other else set()
    return found


def python_imports(package: Path) -> Graph:
    """Each file, and those that it imports, also inside functions."""
    files = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    found: Graph = {}
    for file, path in files.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                node.body = []
        found[file] = set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            here = file.split(".") if file else []
            folder = here if path.name == "__init__.py" else here[:-1]
            folder = folder[: len(folder) - node.level + 1]
            module = folder + (node.module.split(".") if node.module else [])
            for name in node.names:
                candidates = (".".join([*module, name.name]), ".".join(module))
                other = next((one for one in candidates if one in files), None)
                found[file] |= {other} if other and other != file else set()
    return found


@pytest.mark.parametrize("crate", sorted(CRATES))
def test_the_files_of_a_crate_import_one_way(crate: str) -> None:
    assert_no_circle(rust_imports(CRATES[crate] / "src"))


def test_every_crate_has_its_place() -> None:
    assert sorted(CRATES) == sorted(LAYERS)


@pytest.mark.parametrize("crate", LAYERS)
def test_a_crate_depends_on_those_below_it(crate: str) -> None:
    manifest = (CRATES[crate] / "Cargo.toml").read_text()
    below = set(LAYERS[: LAYERS.index(crate)])
    for section in re.split(r"^\[(?=[\w.-]*dependencies)", manifest, flags=re.MULTILINE)[1:]:
        body = section.partition("\n[")[0]
        named = set(re.findall(r"^(lowtide[\w-]*)\b", body, re.MULTILINE))
        aside = {"lowtide-testing"} if section.startswith("dev-dependencies") else set()
        assert named - aside <= below


def test_the_files_of_the_package_import_one_way() -> None:
    assert_no_circle(python_imports(PACKAGE))


def test_a_circle_over_re_exports_is_found(tmp_path: Path) -> None:
    for folder, other in (("one", "two"), ("two", "one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mod.rs").write_text("mod part;\npub(crate) use part::{Item, Part};\n")
        (tmp_path / folder / "part.rs").write_text(f"use crate::{other}::Item;\n")
    with pytest.raises(pytest.fail.Exception, match="one/part → two/part|two/part → one/part"):
        assert_no_circle(rust_imports(tmp_path))


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.rs").write_text("use crate::other::Item;\n")
    (tmp_path / "other.rs").write_text("use super::{nobody, one};\n")
    assert rust_imports(tmp_path) == {"one": {"other"}, "other": {"one"}}
    (tmp_path / "one.py").write_text("from .other import item\n")
    (tmp_path / "other.py").write_text("def later():\n    from . import one\n")
    assert python_imports(tmp_path) == {"one": {"other"}, "other": {"one"}}
    with pytest.raises(pytest.fail.Exception, match=r"one → other → one|other → one → other"):
        assert_no_circle(python_imports(tmp_path))


def test_what_an_agent_runs_leaves_the_environment_to_the_program() -> None:
    """The program may set variables while a thread of the agent runs: then nobody may read them."""
    used = ["lowtide-agent", *LAYERS[: LAYERS.index("lowtide-helper")]]
    readers = {
        path.name
        for crate in used
        for path in (CRATES[crate] / "src").rglob("*.rs")
        if re.search(r"\benv::vars?\b|\bvars?_os\b", path.read_text().partition("#[cfg(test)]")[0])
    }
    assert readers == {"variables.rs"}


FOR_TESTS = {"LOWTIDE_DOUBLE", "LOWTIDE_DOUBLE_STATE", "LOWTIDE_HELPER"}


def test_every_variable_of_the_product_is_in_the_help_and_on_a_page() -> None:
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "crates").glob("*/src/**/*.rs")]
    product = [path for path in sources if "lowtide-testing" not in path.parts]
    named = {
        name for path in product for name in re.findall(r"\bLOWTIDE_[A-Z_]+\b", path.read_text())
    }
    table = (ROOT / "crates/lowtide-cli/src/program/variables.txt").read_text()
    told = set(re.findall(r"^  (LOWTIDE_[A-Z_]+) ", table, re.MULTILINE))
    assert sorted(named - FOR_TESTS) == sorted(told)
    pages = " ".join(
        path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    )
    assert sorted(name for name in told if not re.search(rf"\b{name}\b", pages)) == []


def test_the_profile_of_the_front_page_names_crates_that_the_crate_uses() -> None:
    page = (ROOT / "crates/lowtide/src/front_page.md").read_text()
    named = set(re.findall(r"^\[profile\.dev\.package\.([\w-]+)\]", page, re.MULTILINE))
    used = set(
        re.findall(r"^(lowtide-\w+)", (CRATES["lowtide"] / "Cargo.toml").read_text(), re.MULTILINE)
    )
    assert "lowtide-device" in named and named <= used
