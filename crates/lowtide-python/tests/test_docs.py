"""Every code block of the README and of docs/*.md: Python runs here, commands are run by a test that is
named here, and everything else is marked as text."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lowtide
import pytest
import torch
from kernel import MIB, weights
from workers import load_reranker

ROOT = Path(__file__).parent.parent.parent.parent
PAGES = [
    ROOT / "README.md",
    *(page for sub in (".", "start") for page in sorted((ROOT / "docs" / sub).glob("*.md"))),
]

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="the docs are not here")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str


def blocks() -> Iterator[Block]:
    for page in PAGES:
        if not page.exists():
            continue
        text = page.read_text()
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(page.name, line, found[1], found[2])


BLOCKS = list(blocks())
BY_CI = "cargo xtask test runs it"
COMMANDS = {
    "pip install .": BY_CI,
    "cargo xtask dist": "it installs and runs what it made",
    "pip install target/dist/*.whl": "cargo xtask dist does it in an empty environment",
    "cargo add --path /path/to/lowtide/crates/lowtide": "the examples of its front page use the crate so",
    "lowtide status": "crates/lowtide-cli/tests/commands/agents.rs",
    "cargo run --release -- demo": "crates/lowtide-cli/tests run the demo",
    "cargo xtask test": "it runs this test",
    "cargo test -p lowtide-release --test requirements": BY_CI,
    "lowtide doctor --json": "crates/lowtide-cli/tests check the keys of doctor's JSON",
}


def test_every_block_says_what_it_is() -> None:
    assert len(BLOCKS) > 10
    for block in BLOCKS:
        assert block.language in ("python", "sh", "text"), block


def test_every_command_is_run_by_a_test() -> None:
    for block in BLOCKS:
        if block.language != "sh":
            continue
        for line in block.text.splitlines():
            command = line.partition("#")[0].partition("|")[0].strip()
            assert command in COMMANDS, f"{block.page}:{block.line}: {command}"


class Engine:
    def __init__(self) -> None:
        self.model: Any = torch.nn.Linear(512, 512)
        self.cache = {"kv": weights(MIB)}


def build(_name: str = "") -> torch.nn.Module:
    """A model that is large enough for the kernel's numbers."""
    model = torch.nn.utils.skip_init(torch.nn.Linear, 2048, 4096)
    torch.nn.init.ones_(model.weight)
    return model


def scope() -> dict[str, Any]:
    """The names that the pages use without saying what they are."""
    served: list[object] = []
    return {
        "__name__": "page",
        "lowtide": lowtide,
        "torch": torch,
        "runner": Engine(),
        "model": torch.nn.Linear(512, 512),
        "tasks": ["mmmu", "chartqa"],
        "run": served.append,
        "serve": served.append,
        "request": "a request",
        "update_weights": lambda: served.append("weights"),
        "batch": [torch.ones(1, 2048)],
        "load_reranker": build,
        "load_generator": build,
        "pairs": [torch.ones(1, 2048)] * 2,
        "texts": torch.ones(1, 2048),
        "prompts": lambda scores: [one[:, :2048] for one in scores],
        "evaluate": lambda model, task: task,
        "results": {},
        "app": served.append,
        "load": build,
        "inputs": torch.ones(1, 2048),
        "cached_model": functools.cache(build),
    }


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.language == "python"],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_python(
    block: Block,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "lowtide")
    monkeypatch.setenv("LOWTIDE_DEVICE", "cpu")
    monkeypatch.delenv("LOWTIDE_FREE_ON_IDLE", raising=False)
    names = scope()
    if "lowtide.Worker(" in block.text:
        names["load_reranker"] = load_reranker
    code = compile(block.text, f"{block.page}:{block.line}", "exec", dont_inherit=True)
    try:
        exec(code, names)
    finally:
        for value in names.values():
            if isinstance(value, lowtide.Idle):
                value.close()
    told = [vars(one) for one in caplog.records if "lowtide_verdict" in vars(one)]
    ends = [one for one in told if one["lowtide_release"].startswith("stage ")]
    assert all(one["lowtide_verdict"] == "released" for one in ends), caplog.text


def test_the_stage_of_the_notebooks_page_frees() -> None:
    (cell,) = [block.text for block in BLOCKS if block.text.startswith("%%stage")]
    body = textwrap.indent(cell.partition("\n")[2], "    ")
    names = scope()
    exec("with lowtide.stage('encoder', device='cpu') as stage:\n" + body, names)
    assert names["stage"].receipt.verdict == "released", names["stage"].receipt


@pytest.mark.parametrize(
    ("said", "bytes"),
    [
        ("50 MB", 50_000_000),
        ("50MB", 50_000_000),
        ("50 mb", 50_000_000),
        ("6GB", 6_000_000_000),
        ("512MiB", 512 << 20),
        ("512 MiB", 512 << 20),
        ("0.5 GiB", 512 << 20),
        ("1.5 kB", 1500),
        ("2g", 2 << 30),
        ("50_000_000 B", 50_000_000),
        ("0", 0),
        (50_000_000, 50_000_000),
        (5e7, 50_000_000),
        (torch.tensor(4096).item(), 4096),
    ],
)
def test_a_size_is_what_people_write(said: Any, bytes: int) -> None:
    assert lowtide._native.parse_bytes(said) == bytes
    with lowtide.idle("5m", to=said, device="cpu") as idle:
        assert idle.enabled
    free = said if isinstance(said, str) else f"{said:.0f} B"
    with lowtide.idle("5m", to=f"free {free}", device="cpu"):
        pass
    lowtide.Stages("cpu", budget=said)


@pytest.mark.parametrize("said", ["512", " 1.5", "50_000_000"])
def test_a_text_without_a_unit_is_not_taken_for_bytes(said: str) -> None:
    number = said.strip()
    told = f'"{number}" has no unit; write "{number} MiB", or the number {number} for bytes'
    for to in (said, f"free {said}"):
        with pytest.raises(ValueError, match=re.escape(told)):
            lowtide.release(to=to, device="cpu")
    with pytest.raises(ValueError, match=re.escape(told)):
        lowtide._native.parse_bytes(said)


@pytest.mark.parametrize(
    "said", ["", "MB", "-1 MB", "5 parsecs", "1,5 GB", -1, 1.5, float("inf"), None]
)
def test_what_is_no_size_is_refused_with_what_to_write(said: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"is not a size; write a number") as refused:
        lowtide._native.parse_bytes(said)
    assert str(refused.value).count("write") == 1, "one advice, not two"
    assert isinstance(refused.value, TypeError) == (said is None)


@pytest.mark.parametrize("said", ["floor", "Floor", " FLOOR "])
def test_the_floor_in_any_case(said: str) -> None:
    with lowtide.idle("5m", to=said, device="cpu") as idle:
        assert idle.enabled
