"""Builds the wheel `lowtide` from a checkout: the Python package by maturin, and the programs beside it.

`pip install .` calls this file (PEP 517). It says first what is needed, and shows cargo's progress on the
terminal: pip itself hides what a build prints. LOWTIDE_WHEEL_PROGRAMS=no leaves out the command `lowtide`
and the agent. There is no source distribution: a checkout is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import maturin
from wheel_file import add_programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Settings = Mapping[str, Any] | None

ROOT = Path(__file__).resolve().parent.parent
# The profile of everything that is given away; `cargo xtask dist` uses it too.
PROFILE = "pack"


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Returns what maturin needs. pip asks this first, so it is where a missing compiler is reported."""
    check_needs()
    found: list[str] = maturin.get_requires_for_build_wheel(config_settings)
    return found


def prepare_metadata_for_build_wheel(metadata: str, config_settings: Settings = None) -> str:
    """Writes the metadata of the wheel."""
    found: str = maturin.prepare_metadata_for_build_wheel(metadata, with_profile(config_settings))
    return found


def build_wheel(to: str, config_settings: Settings = None, metadata: str | None = None) -> str:
    """Builds the wheel into the folder `to`. Returns its name."""
    check_needs()
    settings = with_profile(config_settings)
    with cargo_on_terminal():
        name: str = maturin.build_wheel(to, settings, metadata)
        if os.environ.get("LOWTIDE_WHEEL_PROGRAMS") != "no":
            add_programs(Path(to, name), *built_programs(profile_of(settings)), ROOT)
    return name


get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_editable(to: str, config_settings: Settings = None, metadata: str | None = None) -> str:
    """Builds a wheel that refers to the package's files in the checkout. It has no programs."""
    check_needs()
    with cargo_on_terminal():
        name: str = maturin.build_editable(to, with_profile(config_settings), metadata)
    return name


def build_sdist(to: str, config_settings: Settings = None) -> str:
    """Refuses: the programs' crates would not be in it."""
    sys.exit("lowtide has no source distribution; use a checkout, or a wheel by `cargo xtask dist`")


def check_needs() -> None:
    """Ends the build with one message if something is missing that it needs."""
    text = Path(ROOT, "Cargo.toml").read_text(encoding="utf-8")
    stated = re.search(r'rust-version = "(\d+)\.(\d+)"', text)
    needed = (int(stated[1]), int(stated[2])) if stated else (0, 0)
    missing = []
    rust = version_of("rustc")
    if rust is None or not shutil.which("cargo"):
        missing.append("Rust is not on the search path: https://rustup.rs installs it")
    elif rust < needed:
        missing.append(f"Rust is {rust[0]}.{rust[1]}, which is too old: `rustup update`")
    if not shutil.which("cc"):
        missing.append("there is no C compiler `cc`, which links: install gcc or clang")
    if missing:
        found = "".join(f"\n  - {one}" for one in missing)
        sys.exit(
            f"lowtide is compiled here and needs Rust {needed[0]}.{needed[1]} or newer and a C compiler."
            f"{found}\nA wheel needs neither: `cargo xtask dist` makes one."
        )
    say(f"lowtide: compiling with Rust {rust[0]}.{rust[1]}; minutes the first time" if rust else "")


def version_of(program: str) -> tuple[int, int] | None:
    """Returns the version that a program says it has, or None if it cannot be run."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    numbers = re.search(r"(\d+)\.(\d+)", said.stdout)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def with_profile(settings: Settings) -> dict[str, Any]:
    """Returns the settings with the profile, unless the caller says how maturin builds."""
    all_settings = dict(settings or {})
    given = {"maturin.build-args", "build-args"} & all_settings.keys()
    if not given and "MATURIN_PEP517_ARGS" not in os.environ:
        all_settings["build-args"] = f"--profile {PROFILE} --locked"
    return all_settings


def profile_of(settings: Mapping[str, Any]) -> str:
    """Returns the cargo profile that maturin is told to use."""
    words: list[str] = maturin.get_maturin_pep517_args(settings)
    return words[words.index("--profile") + 1] if "--profile" in words else "release"


def built_programs(profile: str) -> tuple[Path, Path, Path]:
    """Builds the command, the agent and the helper. Returns their files."""
    command = ["cargo", "build", "--profile", profile, "--locked"]
    command += ["--package", "lowtide-cli", "--package", "lowtide-agent"]
    command += ["--package", "lowtide-helper"]
    subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=True)
    said = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(
        json.loads(said.stdout)["target_directory"], "debug" if profile == "dev" else profile
    )
    return folder / "lowtide", folder / "liblowtide_agent.so", folder / "lowtide-helper"


@contextlib.contextmanager
def cargo_on_terminal() -> Iterator[None]:
    """Sends standard error to the terminal for the time of a build, where there is a terminal.

    Without one, and where cargo is told to be quiet, everything stays as pip has it.
    """
    terminal = open_terminal()
    if terminal is None:
        yield
        return
    before = os.dup(2)
    try:
        os.dup2(terminal, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(terminal)


def say(sentence: str) -> None:
    """Writes a sentence to the terminal, if there is one, and to pip's log."""
    print(sentence, flush=True)
    terminal = open_terminal()
    if terminal is not None:
        os.write(terminal, f"\n{sentence}\n".encode())
        os.close(terminal)


def open_terminal() -> int | None:
    """Returns a descriptor of the terminal, or None if there is none or cargo is told to be quiet."""
    if os.environ.get("CARGO_TERM_QUIET") == "true":
        return None
    try:
        return os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return None
