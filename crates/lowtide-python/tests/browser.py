"""A real browser for the report: Debian's Chromium, driven by playwright. It notes every request."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
WHY_NOT = (
    "there is no Chromium: `apt-get install chromium`, or `cargo xtask browser`"
    if CHROMIUM is None
    else None
    if find_spec("playwright")
    else "playwright is not installed"
)


class Opened:
    """A page in the browser, with what it asked for and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(dialog.message))

    def show(self, html: str, folder: Path, rows: int = 0) -> None:
        """Opens a page and waits until its table has so many rows."""
        file = folder / "page.html"
        file.write_text(html)
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("footer", state="attached")
        self.page.wait_for_function(
            "rows => document.querySelectorAll('[role=row]').length > rows", arg=rows or -1
        )

    def accessible_rows(self) -> list[list[str]]:
        """Returns the texts of the cells of each row, as the accessibility tree has them."""
        client = self.page.context.new_cdp_session(self.page)
        client.send("Accessibility.enable")
        nodes = client.send("Accessibility.getFullAXTree")["nodes"]
        by_id = {node["nodeId"]: node for node in nodes}

        def role(node: dict[str, Any]) -> str:
            return str(node.get("role", {}).get("value", ""))

        def text(node: dict[str, Any]) -> str:
            if role(node) == "StaticText":
                return str(node["name"]["value"])
            return "".join(text(by_id[one]) for one in node.get("childIds", []) if one in by_id)

        def cells(row: dict[str, Any]) -> list[str]:
            inside = [by_id[one] for one in row.get("childIds", []) if one in by_id]
            return [text(one) for one in inside if role(one) in ("cell", "gridcell")]

        return [found for node in nodes if role(node) == "row" and (found := cells(node))]


@contextmanager
def browser(**options: Any) -> Iterator[Opened]:
    """Opens a page in Chromium; `options` are those of playwright's `new_context`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # A container has no sandbox of the kernel, and may have little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            context = chromium.new_context(
                **{"viewport": {"width": 1120, "height": 900}, **options}
            )
            context.set_default_timeout(60_000)
            yield Opened(context.new_page())
        finally:
            chromium.close()
