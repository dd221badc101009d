"""Adoption: nothing happens unless the program asks, and then it happens at the project's import.

How each adapter works is tried with the real project, by `cargo xtask adopters`.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import lowtide
import pytest
from lowtide import _adopt, _adopt as watching

STARTUP = Path(__file__).parent.parent / "adopt"


def python(code: str, *folders: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with these folders first in PYTHONPATH."""
    path = [*map(str, folders), *(path for path in sys.path if path)]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("LOWTIDE_")}
    environment |= {"PYTHONPATH": ":".join(path)} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that no test has imported, with a module in it."""
    name = f"project_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "parts.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_importing_lowtide_watches_nothing() -> None:
    code = """
import sys
before = list(sys.meta_path)
import lowtide
assert sys.meta_path == before, sys.meta_path
assert not [name for name in sys.modules if name.startswith("lowtide._adopt")]
"""
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_action_runs_after_the_import_and_once(project: str) -> None:
    seen = []
    watching.when_imported(f"{project}.parts", lambda module: seen.append(module.value))
    importlib.import_module(project)
    assert seen == []
    module = importlib.import_module(f"{project}.parts")
    assert seen == [1]
    importlib.reload(module)
    assert seen == [1]
    assert module.__loader__.get_source(module.__name__) == "value = 1\n"
    assert "exec_module" not in vars(module.__loader__)


def test_an_action_runs_at_once_if_the_module_is_there(project: str) -> None:
    importlib.import_module(f"{project}.parts")
    seen = []
    watching.when_imported(f"{project}.parts", lambda module: seen.append(module.value))
    assert seen == [1]


def test_an_action_that_fails_does_not_break_the_import(
    project: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(module: object) -> None:
        raise AttributeError("it has no run")

    watching.when_imported(f"{project}.parts", fail)
    with caplog.at_level(logging.WARNING, "lowtide"):
        importlib.import_module(f"{project}.parts")
    assert "it has no run" in caplog.text and "as without lowtide" in caplog.text
    with pytest.raises(AttributeError, match="it has no run"):
        watching.when_imported(f"{project}.parts", fail)


def test_a_module_that_is_missing_or_fails_says_so_as_without_lowtide(project: str) -> None:
    missing = f"{project}.missing"
    watching.when_imported(missing, lambda module: None)
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module(missing)
    assert error.value.name == missing
    broken = Path(importlib.import_module(project).__path__[0], "broken.py")
    broken.write_text("import nowhere_at_all\n")
    importlib.invalidate_caches()
    seen = []
    watching.when_imported(f"{project}.broken", seen.append)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            importlib.import_module(f"{project}.broken")
    broken.write_text("repaired = True\n")
    importlib.invalidate_caches()
    importlib.import_module(f"{project}.broken")
    assert len(seen) == 1


def test_what_was_replaced_can_be_put_back(project: str) -> None:
    module = importlib.import_module(f"{project}.parts")

    class Owner:
        @classmethod
        def made(cls) -> str:
            return cls.__name__

    adopted = _adopt.Adopted("autorag")
    original = vars(Owner)["made"]
    adopted.replace(Owner, "made", lambda found: classmethod(lambda cls: found.__func__(cls) * 2))
    adopted.replace(module, "value", lambda found: found + 1)
    assert (Owner.made(), module.value) == ("OwnerOwner", 2)
    assert adopted.replaced[1] == f"{project}.parts.value"
    adopted.undo()
    assert (vars(Owner)["made"], module.value, adopted.replaced) == (original, 1, [])
    with pytest.raises(AttributeError):
        adopted.replace(module, "other", lambda found: found)


def test_an_unknown_project_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match="'everything'.*autorag"):
        lowtide.adopt("everything")


def test_vllm_need_not_be_adopted_and_what_to_do_instead_is_said() -> None:
    with pytest.raises(ValueError, match="--sleep-mode-backend lowtide"):
        lowtide.adopt("vLLM")


def test_the_variable_adopts_and_a_wrong_word_in_it_is_logged_only() -> None:
    code = """
import logging, sys
logging.basicConfig(stream=sys.stdout)
import lowtide
from lowtide import _adopt
print(sorted(_adopt._adopted))
print(lowtide.adopt("AutoRAG") is _adopt._adopted["autorag"])
"""
    done = python(code, LOWTIDE_ADOPT=" AutoRAG, everything")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "['autorag']\nTrue" in done.stdout and "'everything'" in done.stdout


def test_a_wrong_word_in_the_variable_is_told_in_a_program_without_logging() -> None:
    done = python("import lowtide", LOWTIDE_ADOPT="docling, vllm")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, lines
    assert "LOWTIDE_ADOPT=docling: lowtide cannot" in lines[0] and "docling-serve" in lines[0]
    assert "--sleep-mode-backend lowtide" in lines[1]


def test_an_adopted_project_that_is_not_installed_says_so() -> None:
    done = python("import lowtide; print(lowtide.adopt('autorag'))")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "autorag: it is not installed in this environment" in done.stdout


def installed(folder: Path, version: str) -> None:
    """Has the environment say that a version of AutoRAG is installed."""
    data = folder / f"autorag-{version}.dist-info"
    data.mkdir()
    (data / "METADATA").write_text(f"Metadata-Version: 2.1\nName: AutoRAG\nVersion: {version}\n")


@pytest.mark.parametrize("first", ["import autorag, lowtide", "import lowtide"])
def test_another_version_than_the_tried_one_is_told_once_when_the_project_is_used(
    program: Path, first: str
) -> None:
    installed(program, "0.4.1")
    code = f"{first}\nlowtide.adopt('autorag')\nimport autorag\nlowtide.adopt('autorag')\n"
    done = python(code, program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "autorag 0.4.1" in done.stderr and "0.3.27" in done.stderr
    unused = python("import lowtide; lowtide.adopt('autorag')", program)
    assert (unused.returncode, unused.stderr) == (0, ""), "nobody uses it here"


def test_the_tried_version_says_nothing(program: Path) -> None:
    installed(program, _adopt.PROJECTS["autorag"].tried)
    done = python("import lowtide; lowtide.adopt('autorag'); import autorag", program)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_project_without_what_an_adapter_replaces_runs_and_its_user_is_told(
    program: Path,
) -> None:
    (program / "autorag/schema").mkdir()
    (program / "autorag/schema/__init__.py").write_text("")
    (program / "autorag/schema/base.py").write_text("class BaseModule:\n    pass\n")
    code = "import lowtide; lowtide.adopt('autorag'); import autorag.schema.base; print('runs')"
    done = python(code, program)
    assert (done.returncode, done.stdout) == (0, "runs\n"), done.stderr
    assert "autorag.schema.base runs as without lowtide" in done.stderr, done.stderr
    assert "run_evaluator" in done.stderr and done.stderr.count("\n") == 1


def test_a_log_is_shown_where_the_variable_asks_for_it() -> None:
    code = "import lowtide; lowtide.empty_device_cache()"
    quiet = python(code)
    assert (quiet.returncode, quiet.stderr) == (0, ""), quiet.stderr
    shown = python(code, LOWTIDE_LOG="info")
    assert shown.stderr.startswith("lowtide: empty_device_cache on no device"), shown.stderr


# What `lowtide run --adopt` does to a Python program: its folder comes first in PYTHONPATH.

ASK = f"""
import sys
print("folder" if {str(STARTUP)!r} in sys.path else "no folder")
print("lowtide" in sys.modules)
import autorag
print("lowtide" in sys.modules, [one for one in sys.meta_path if type(one).__name__ == "Adopting"])
import sitecustomize
print(sitecustomize.__file__)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with an empty package of a project's name."""
    (tmp_path / "autorag").mkdir()
    (tmp_path / "autorag/__init__.py").write_text("")
    return tmp_path


def test_a_program_adopts_at_the_projects_import_and_is_otherwise_unchanged(program: Path) -> None:
    (program / "sitecustomize.py").write_text("print('mine')\n")
    done = python(ASK, STARTUP, program, LOWTIDE_ADOPT="autorag")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    own = str(program / "sitecustomize.py")
    assert done.stdout.splitlines() == ["mine", "no folder", "False", "True []", own]


def test_a_program_without_a_sitecustomize_of_its_own_is_adopted_too(program: Path) -> None:
    done = python(ASK, STARTUP, program, LOWTIDE_ADOPT="autorag")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[:3] == ["no folder", "False", "True []"]


def test_without_the_variable_the_folder_does_nothing(program: Path) -> None:
    done = python(ASK, STARTUP, program)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[:3] == ["no folder", "False", "False []"]


def test_a_program_whose_environment_has_no_lowtide_is_told_once_and_runs(program: Path) -> None:
    (program / "lowtide.py").write_text("raise ImportError('no lowtide here')\n")
    done = python(ASK, STARTUP, program, LOWTIDE_ADOPT="autorag")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1 and "no lowtide here" in done.stderr
    assert sys.executable in done.stderr


def test_a_programs_own_sitecustomize_that_fails_is_reported_as_without_lowtide(
    program: Path,
) -> None:
    (program / "sitecustomize.py").write_text("raise RuntimeError('mine is broken')\n")
    alone = python("print(1)", program)
    done = python("print(1)", STARTUP, program, LOWTIDE_ADOPT="autorag")
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert "mine is broken" in done.stderr and "mine is broken" in alone.stderr


def test_entry_points_do_nothing_without_their_project_or_the_variable() -> None:
    # As SGLang and vLLM call them; neither is installed here.
    code = """
import sys
before = list(sys.meta_path)
from lowtide._adopt import _adopted, sglang, vllm
sglang.register()
vllm.register()
assert sys.meta_path == before and not _adopted and not vllm.owns_memory()
assert not [name for name in sys.modules if name in ("sglang", "vllm", "torch")]
"""
    done = python(code)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_the_list_of_packages_is_that_of_the_adapters() -> None:
    text = (STARTUP / "sitecustomize.py").read_text()
    listed = text.split("PACKAGES = {")[1].split("}")[0]
    found = dict(line.split('"')[1::2] for line in listed.splitlines() if '"' in line)
    assert found == {name: project.package for name, project in _adopt.PROJECTS.items()}


def test_the_tried_versions_are_those_that_are_tried() -> None:
    trials = (Path(__file__).parents[3] / "xtask/src/adopters.rs").read_text()
    for project in _adopt.PROJECTS.values():
        name = project.distribution.replace("_", "-")
        assert f'"{name}=={project.tried}"' in trials
