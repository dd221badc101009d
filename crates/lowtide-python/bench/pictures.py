"""Makes the pictures of docs/report.md and docs/start/notebook.md from real runs, and prints figures of the report.

    python bench/pictures.py report docs        # report.png, report-dark.png
    python bench/pictures.py notebook docs/start
    python bench/pictures.py figures            # with 10,000 rows: first paint, the longest task

It needs torch, playwright and Debian's Chromium, and `notebook` needs JupyterLab. All memory is the host's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("LOWTIDE_DEVICE", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import lowtide
import torch
from browser import browser
from lowtide._runtime.view import page

MIB = 1 << 20


def weights(mib: int) -> torch.Tensor:
    return torch.zeros(mib * MIB, dtype=torch.uint8)


class Encoder(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 2048) for _ in range(layers))


def hook_with(kept: torch.Tensor) -> Any:
    return lambda *_: kept


def report(folder: Path) -> None:
    """A program that leaks in seven ways asks why; three stages run one after another."""
    encoder, history, seen = Encoder(9), [weights(7) for _ in range(11)], {}
    seen["query"], seen["batch"] = weights(46), weights(12)
    optimizer = torch.optim.Adam(encoder.parameters())
    for one in encoder.parameters():
        one.grad = torch.zeros_like(one)
    optimizer.step()
    encoder.register_forward_hook(hook_with(weights(24)))
    failed = ValueError("shapes do not match", weights(31))
    globals().update(
        encoder=encoder, history=history, seen=seen, optimizer=optimizer, failed=failed
    )
    del encoder, history, seen, optimizer, failed, one
    answer = lowtide.why().html()
    for name in ("encoder", "history", "seen", "optimizer", "failed"):
        del globals()[name]
    stages = lowtide.Stages()
    for name, layers in (("encode", 12), ("rerank", 22), ("generate", 17)):
        with stages.stage(name) as stage:
            stage.own(Encoder(layers))
            stage.look()
    for name, html, scheme in (("report", answer, "light"), ("report-dark", stages.html(), "dark")):
        with browser(color_scheme=scheme, viewport={"width": 960, "height": 300}) as opened:
            opened.show(html, folder / "..")
            opened.page.wait_for_timeout(500)
            if name == "report-dark":
                opened.page.locator("summary").nth(1).click()
            opened.page.screenshot(path=folder / f"{name}.png", full_page=True)
    (folder / "../page.html").unlink()


CELLS = [
    "import torch\n%load_ext lowtide\nhistory = []",
    "torch.ones(80 << 20)[:3]",
    "def train(batch):\n    raise ValueError('shapes do not match')",
    "train(torch.ones(48 << 20))",
    "%memory\nimport time\nfor n in range(10):\n    history.append(torch.ones(12 << 20))\n    time.sleep(0.4)",
    "%why",
    "lowtide.cut(3)",
]


def notebook(folder: Path) -> None:
    """A notebook with a result, a failed cell and a list that grows, run by keys in JupyterLab."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        cells = [
            {
                "cell_type": "code",
                "source": one,
                "metadata": {},
                "outputs": [],
                "execution_count": None,
                "id": f"c{n}",
            }
            for n, one in enumerate(CELLS)
        ]
        kernel = {"name": "python3", "display_name": "Python 3"}
        made = {
            "cells": cells,
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (Path(home) / "leak.ipynb").write_text(json.dumps(made))
        options = [
            "--no-browser",
            "--allow-root",
            f"--port={port}",
            "--IdentityProvider.token=t",
            f"--notebook-dir={home}",
        ]
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], stderr=subprocess.DEVNULL
        )
        try:
            _run_cells(
                f"http://127.0.0.1:{port}/lab/tree/leak.ipynb?token=t", folder / "notebook.png"
            )
        finally:
            server.terminate()
            server.wait()


def _run_cells(address: str, picture: Path) -> None:
    with browser(viewport={"width": 1000, "height": 2400}) as opened:
        for _ in range(60):
            try:
                opened.page.goto(address)
                break
            except Exception:  # noqa: BLE001  It is starting.
                time.sleep(1)
        opened.page.wait_for_selector(".jp-CodeCell", timeout=120_000)
        opened.page.get_by_text("| Idle").wait_for(timeout=120_000)
        if opened.page.locator(".jp-FileBrowser").is_visible():
            opened.page.keyboard.press("Control+B")
        cells = opened.page.locator(".jp-CodeCell")
        for n in range(len(CELLS)):
            cells.nth(n).locator(".cm-content").click()
            opened.page.keyboard.press("Shift+Enter")
            opened.page.wait_for_function(
                "n => /\\d/.test(document.querySelectorAll('.jp-CodeCell')[n].querySelector('.jp-InputPrompt').textContent)",
                arg=n,
                timeout=120_000,
            )
            if n == 4:
                opened.page.wait_for_timeout(2500)
                live = opened.page.frame_locator("iframe").first.locator(".legend").inner_text()
                print("while the cell runs:", " ".join(live.split()))
        opened.page.wait_for_timeout(3000)
        top = cells.nth(3).bounding_box()
        end = cells.nth(len(CELLS) - 1).bounding_box()
        clip = {
            "x": top["x"],
            "y": top["y"],
            "width": top["width"],
            "height": end["y"] + end["height"] - top["y"],
        }
        opened.page.screenshot(path=picture, clip=clip)


def figures() -> None:
    """Ten thousand rows, seven times."""
    blocks = [
        {"block": n, "stream": n % 12, "bytes": (n % 97 + 1) * 65536, "from": n + 1, "until": None}
        for n in range(10_000)
    ]
    points = [
        {"at": n, "streams": {f"stream {s}": n * s * MIB for s in range(12)}} for n in range(2000)
    ]
    history = {
        "points": points,
        "peak_at": 1999,
        "blocks": blocks,
        "rest_blocks": 0,
        "rest_bytes": 0,
    }
    html = page("10,000 rows", history)
    watch = """window.longest = 0; new PerformanceObserver((list) => {
        for (const one of list.getEntries()) longest = Math.max(longest, one.duration);
    }).observe({ entryTypes: ["longtask"] })"""
    seen: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(7):
            with browser() as opened:
                opened.page.add_init_script(watch)
                opened.show(html, Path(folder), rows=10_000)
                first = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                seen.append(tuple(opened.page.evaluate(f"[{first}, longest, performance.now()]")))
    names = ("first paint", "longest task", "all rows there")
    for name, each in zip(names, zip(*seen)):
        print(
            f"{name}: median {statistics.median(each):.0f} ms, {min(each):.0f} to {max(each):.0f} ms"
        )
    print(
        f"{len(html):,} bytes; load of the machine {os.getloadavg()[0]:.1f}; {re.sub(' +', ' ', _browser())}"
    )


def _browser() -> str:
    return subprocess.run(
        ["chromium", "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    part, *where = sys.argv[1:]
    {"report": report, "notebook": notebook, "figures": figures}[part](*map(Path, where))
