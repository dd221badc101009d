"""docling-serve 1.38.2, the real server: documents are converted, then it is idle, plain and adopted.

A detector of layouts with random weights stands in for docling's own, which cannot be downloaded here.
Everything else is docling-serve's own: its command, its engine, its pipeline. OCR and tables are off:
their models are others. The memory is host memory (LOWTIDE_DEVICE=cpu).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import small_models

LIMIT_S = 3600
MIB = 1 << 20
OPTIONS = {"do_ocr": False, "do_table_structure": False, "to_formats": ["json"]}
ADOPTED = ["lowtide", "run", "--adopt", "docling-serve", "--"]


def main() -> None:
    folder = Path(sys.argv[1])
    small_models.layout(folder / "models/docling-project--docling-layout-heron")
    documents = [document(folder, name) for name in ("first", "second")]
    plain = served(folder, "plain", [], {}, documents)
    assert " - lowtide - " not in plain["log"], plain["log"]
    assert not plain["has_lowtide"]
    after = served(folder, "after", ADOPTED, {"LOWTIDE_FREE_ON_IDLE": "2s"}, documents)
    at_end = served(folder, "at-end", ADOPTED, {"LOWTIDE_FREE_ON_IDLE": "task"}, documents)
    off = served(folder, "off", ADOPTED, {"LOWTIDE_FREE_ON_IDLE": "off"}, documents)
    for one in (after, at_end, off):
        assert one["answers"] == plain["answers"]
        assert one["status"] == plain["status"], (one["status"], plain["status"])
        assert not [line for line in one["log"].splitlines() if "Traceback" in line], one["log"]
    assert not summaries(off["log"]), off["log"]
    all_runs = {"plain": plain, "after 2 s": after, "at a task's end": at_end, "off": off}
    for name, one in all_runs.items():
        print(f"{name}: {one['busy'] / MIB:.0f} MiB busy, {one['idle'] / MIB:.0f} MiB idle")
    for one in (after, at_end):
        # Each of the two workers has made a model of 163 MiB.
        assert one["idle"] < plain["idle"] - 200 * MIB, (one["idle"], plain["idle"])
        print("\n".join(summaries(one["log"])[:4]))


def document(folder: Path, name: str) -> dict[str, object]:
    """Writes a page as a PDF file. Returns a request for its conversion."""
    from PIL import Image, ImageDraw

    page = Image.new("RGB", (600, 800), "white")
    ImageDraw.Draw(page).rectangle((100, 100, 500, 150 + 50 * len(name)), fill="black")
    file = folder / f"{name}.pdf"
    page.save(file)
    text = base64.b64encode(file.read_bytes()).decode()
    source = {"kind": "file", "base64_string": text, "filename": file.name}
    return {"sources": [source], "options": OPTIONS}


def served(
    folder: Path,
    name: str,
    before: list[str],
    variables: dict[str, str],
    documents: list[dict[str, object]],
) -> dict[str, object]:
    """Runs the server, has it convert, be idle and convert again. Returns what was seen."""
    log = folder / f"{name}.log"
    with server(folder, log, before, variables) as process:
        address = f"http://127.0.0.1:{waited(process, log, r'running on http://[^:]+:([0-9]+)')[1]}"

        def convert(request: dict[str, object]) -> object:
            return answer(f"{address}/v1/convert/source", request)

        with ThreadPoolExecutor(2) as both:
            first = list(both.map(convert, documents))
        busy = used(process.pid)
        if before and variables["LOWTIDE_FREE_ON_IDLE"] != "off":
            waited(process, log, r"idle on cpu: .*")
        idle = used(process.pid)
        answers = first + [convert(one) for one in documents]
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGINT)
        status = process.wait(LIMIT_S)
    assert answers[:2] == answers[2:], answers
    return {
        "answers": answers,
        "busy": busy,
        "idle": idle,
        "status": status,
        "has_lowtide": "_native.abi3.so" in maps,
        "log": log.read_text(),
    }


@contextlib.contextmanager
def server(
    folder: Path, log: Path, before: list[str], variables: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the server, and ends it in any case."""
    settings = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DOCLING_SERVE_ARTIFACTS_PATH": str(folder / "models"),
        "DOCLING_SERVE_LOAD_MODELS_AT_BOOT": "false",
        "HF_HUB_OFFLINE": "1",
        "LOWTIDE_DEVICE": "cpu",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [*before, "docling-serve", "run", "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | settings | variables,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    except BaseException:
        print(log.read_text(), file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def waited(process: subprocess.Popen[bytes], log: Path, pattern: str) -> re.Match[str]:
    """Waits until the log has a text. Fails after a limit, or if the process ends."""
    end = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < end:
        found = re.search(pattern, log.read_text())
        if found is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{log.name} has no {pattern!r}; the server's status: {process.poll()}")


def answer(address: str, request: dict[str, object]) -> object:
    """Sends a request. Returns the document of the answer."""
    post = urllib.request.Request(
        address, json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(post, timeout=LIMIT_S) as response:
        found = json.load(response)
    assert found["status"] == "success", found
    return found["document"]


def used(process: int) -> int:
    """Returns the bytes of a process that are in no file, as the kernel counts them."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def summaries(log: object) -> list[str]:
    """Returns the lines of the idle releases' summaries."""
    lines = (line for line in str(log).splitlines() if " - lowtide - " in line)
    return [line.split(" - lowtide - ")[1] for line in lines]


if __name__ == "__main__":
    main()
