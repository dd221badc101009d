"""The report in a real browser: what it reads, what names of a program may do, and how it is used by keyboard."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from alone import in_a_fork
from browser import WHY_NOT, browser
from lowtide._runtime.view import frame, page

in_browser = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
MIB = 1 << 20
HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">\u202e{data}"


def sized(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


def trace(blocks: int) -> dict[str, Any]:
    """The history of a trace as `lowtide report` makes it."""
    each = [
        {"block": n, "stream": n % 5, "bytes": (n + 1) * 100_000, "from": n + 1, "until": None}
        for n in range(blocks)
    ]
    points = [{"at": n, "streams": {"stream 0": n * MIB, "stream 1": MIB}} for n in range(50)]
    return {
        "points": points,
        "peak_at": 49,
        "blocks": each,
        "rest_blocks": 0,
        "rest_bytes": 0,
    }


def receipt(name: str, holders: int = 0) -> dict[str, Any]:
    with lowtide.stage(name) as stage:
        pass
    assert stage.receipt is not None
    made = stage.receipt.to_dict()
    made["holders"] = [
        {"path": f"{name}[{n}]", "holds": name, "count": 1, "bytes": MIB, "cut": f"del {name}[{n}]"}
        for n in range(holders)
    ]
    return made


def test_the_script_is_the_one_that_the_policy_allows() -> None:
    html = page("a page")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html, (
        "write this digest into lowtide-report/src/lib.rs"
    )
    assert "default-src 'none'" in html


def test_names_cannot_leave_the_data() -> None:
    html = page(HOSTILE, {"held": HOSTILE}) + frame(HOSTILE, {"held": HOSTILE}, height=9)
    assert "<img" not in html and html.count("</script>") == 2
    (data,) = re.findall(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data)["documents"] == [{"held": HOSTILE}]


@in_browser
@in_a_fork
def test_an_answer_with_hostile_names_is_text_and_every_row_is_accessible(
    shop: Any, tmp_path: Path
) -> None:
    shop.model = type(HOSTILE, (torch.nn.Module,), {})()
    shop.model.weight = torch.nn.Parameter(torch.ones(2 * MIB))
    shop.by_name = {HOSTILE: torch.ones(MIB)}
    shop.several = [torch.ones(MIB), torch.ones(3 * MIB)]
    answer = lowtide.why(device="cpu")
    said = [(one.path, one.type) for one in answer.held]
    assert any("<img" in path for path, _ in said) and any("<img" in kind for _, kind in said), said
    with browser() as opened:
        opened.show(answer.html(), tmp_path, rows=len(answer.held))
        found = opened.accessible_rows()
        tiles = "[...document.querySelectorAll('.tile')].map(tile => tile.ariaLabel)"
        labels = opened.page.evaluate(tiles)
        assert {True, False} <= {held.in_use for held in answer.held}, said
        for held in answer.held:
            shown = held.path.replace("\u202e", "\\u{202e}") + ", in use" * held.in_use
            (row,) = [row for row in found if row[0] == shown]
            assert row[1] == sized(held.bytes) and f"{shown}, {row[1]}" in labels
            cut = held.cuts[0] if held.cuts else None
            named = cut and (cut.code or f"lowtide.cut({cut.number}, of=" * bool(cut.number))
            assert row[2].startswith(named or held.by_hand or held.why_no_cut or "nothing"), row
        assert opened.page.title() != "hacked" and not opened.errors
        assert opened.page.locator("img").count() == 0
        assert [one for one in opened.requests if not one.startswith("file:")] == []
        # The policy holds for what a mistake in the script would let in.
        opened.page.evaluate("""async () => {
            document.querySelector("h1").innerHTML = "<img src=x onerror=\\"document.title = 'hacked'\\">";
            await fetch("http://127.0.0.1:9/").catch(() => {});
            await new Promise((done) => setTimeout(done, 300));
        }""")
        assert opened.page.title() != "hacked"


@in_browser
@in_a_fork
def test_ten_thousand_rows_are_all_accessible(tmp_path: Path) -> None:
    history = trace(10_000)
    with browser() as opened:
        opened.show(page("a trace", history), tmp_path, rows=10_000)
        tiles = opened.page.locator(".tile").count()
        found = {row[0]: row[1:3] for row in opened.accessible_rows()}
    assert len(found) == 10_000 and 100 < tiles <= 301
    for block in history["blocks"]:
        assert found[f"block {block['block']}"] == [sized(block["bytes"]), "never freed"]


@in_browser
@in_a_fork
def test_everything_can_be_reached_by_keyboard(tmp_path: Path) -> None:
    history = trace(40)
    documents = [history, receipt("cache", holders=14), receipt("other")]
    with browser(permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.show(page("keys", *documents), tmp_path, rows=40)
        press, at = opened.page.keyboard.press, opened.page.evaluate

        def tab_to(selector: str) -> None:
            for _ in range(60):
                press("Tab")
                if at("it => document.activeElement.matches(it)", selector):
                    return
            pytest.fail(f"no way to {selector}")

        tab_to("[role=slider]")
        press("Home")
        assert "event 0: 1.0 MiB" in at("document.activeElement.ariaValueText")
        press("ArrowRight")
        assert "stream 0 1.0 MiB, stream 1 1.0 MiB" in at("document.activeElement.ariaValueText")
        tab_to("select")
        press("ArrowDown")
        opened.page.wait_for_function("() => document.querySelectorAll('[role=row]').length === 15")
        tab_to("[role=listbox]")
        named = "document.querySelector('.tile.on').ariaLabel"
        first = at(named)
        press("ArrowRight")
        assert at(named) != first
        press("Enter")
        opened.page.wait_for_function(
            "() => document.querySelector('.detail button').textContent === 'copied'"
        )
        copied = at("navigator.clipboard.readText()")
        assert copied.startswith("del cache[") and copied[4:] in at(named)
        tab_to("[role=row]")
        press("End")
        assert at("document.activeElement.textContent").startswith("cache[13]")
        tab_to("summary")
        press("Enter")
        opened.page.wait_for_selector(".inside")
        assert not opened.errors


@in_browser
@in_a_fork
def test_receipts_of_an_answer_stand_at_their_time_of_day(tmp_path: Path) -> None:
    answers = [
        {"answer": "slept", "at_s": at_s, "receipts": [{**receipt("cache"), "took_s": 2.0}] * 2}
        for at_s in (1e9, 1e9 + 60)
    ]
    with browser() as opened:
        opened.show(page("times", *answers), tmp_path)
        opened.page.wait_for_selector("details >> nth=3")
        assert "4 receipts in 64.0 s, from 2001-09-09 01:46:40 UTC" in opened.page.inner_text(
            "main"
        )
        for number, time in enumerate(("01:46:40", "01:46:42", "01:47:40", "01:47:42")):
            opened.page.locator("summary").nth(number).click()
            opened.page.locator("details").nth(number).get_by_text(f"at {time} UTC").wait_for()
        assert not opened.errors


@in_browser
@in_a_fork
def test_stages_and_receipts_are_drawn_in_light_and_dark(tmp_path: Path) -> None:
    stages = lowtide.Stages("cpu")
    for name in ("encode", HOSTILE):
        with stages.stage(name) as stage:
            stage.own({"w": torch.ones(MIB)})
            stage.look()
    with browser() as opened:
        colours = []
        for scheme in ("light", "dark"):
            opened.page.emulate_media(color_scheme=scheme)
            opened.show(stages.html(), tmp_path)
            opened.page.wait_for_selector("details >> nth=1")
            colours.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        text = opened.page.inner_text("main")
        assert "encode" in text and "\\u{202e}{data}" in text, text
        assert stages.report().stages[0].receipt.verdict in text
        assert colours[0] != colours[1] and not opened.errors


@in_browser
@in_a_fork
def test_a_frame_of_a_notebook_is_told_new_numbers(tmp_path: Path) -> None:
    ledger = lowtide._release.releasers.releaser_of("cpu").ledger()
    assert ledger is not None
    documents = [{"at_s": n, "ledgers": [ledger.to_dict()]} for n in range(3)]
    with browser() as opened:
        file = tmp_path / "notebook.html"
        file.write_text(frame("memory", documents[0], height=200, name="live"))
        opened.page.goto(file.as_uri())
        inside = opened.page.frame_locator("iframe")
        inside.locator(".legend").wait_for()
        assert "now" in inside.locator(".legend").inner_text()
        data = {"title": "memory", "version": "1", "small": True, "documents": documents}
        tell = "it => document.querySelector('iframe').contentWindow.postMessage(it, '*')"
        opened.page.evaluate(tell, data)
        inside.get_by_text("2.0 s", exact=True).wait_for()
        assert not opened.errors and opened.page.evaluate("document.querySelector('h1')") is None
