"""How an answer, a receipt, a report or a ledger is displayed: as the report page, or as a few lines of text.

A notebook shows the page small, in a frame of its own: names of the program cannot reach the notebook.
"""

from __future__ import annotations

import json
import time
from html import escape
from typing import Any, NamedTuple

from .._native import __version__, report_page
from .data import mib

_FRAME = "width: 100%; border: 0; color-scheme: inherit"
_MAP_HEIGHT, _CHART_HEIGHT, _LINE_HEIGHT = 225, 175, 33
_MOST_LINES = 5


class View(NamedTuple):
    """A title, rows of a size, a holder and what to do, and what is said below."""

    title: str
    rows: list[tuple[str, str, str]]
    below: list[str]

    def text(self) -> str:
        """Returns the table as lines of text."""
        rows = [f"{size:>14}  {who}{to_do and '  →  ' + to_do}" for size, who, to_do in self.rows]
        return "\n".join([self.title, *rows, *(f"  {one}" for one in self.below)])


def as_data(title: str, documents: list[Any], *, small: bool = False) -> str:
    """Returns what the report page shows, as JSON: what `to_dict` of answers, receipts and others returned."""
    written = {"title": title, "version": __version__, "at_s": time.time(), "small": small}
    return json.dumps({**written, "documents": documents})


def page(title: str, *documents: Any) -> str:
    """Returns the report page: one HTML file that loads nothing."""
    return report_page(as_data(title, list(documents)))


def frame(title: str, *documents: Any, height: int, name: str = "") -> str:
    """Returns the page, small, as an element of a notebook."""
    inside = escape(report_page(as_data(title, list(documents), small=True)))
    said = (
        f'name="{name}" title="{escape(title)}" sandbox="allow-scripts" allow="clipboard-write *"'
    )
    style = f"{_FRAME}; height: {height}px"
    return f'<div><b>{escape(title)}</b></div><iframe {said} style="{style}" srcdoc="{inside}"></iframe>'


def height_of(*, maps: int = 0, charts: int = 0, lines: int = 0) -> int:
    """Returns how high a frame is, in pixels."""
    parts = maps * _MAP_HEIGHT + charts * _CHART_HEIGHT
    return parts + _LINE_HEIGHT * (min(lines, _MOST_LINES) + 1)


def html(shown: Any) -> str | None:
    """Returns a native object as HTML, or None if it is only text."""
    kind, title = type(shown).__name__, repr(shown)[1:-1]
    if kind == "Receipt":
        height = height_of(maps=bool(shown.holders), charts=1, lines=2)
        return frame(shown.line(), shown.to_dict(), height=height)
    if kind == "StagesReport":
        lines = len(shown.stages) + 2
        return frame(title, shown.to_dict(), height=height_of(charts=1, lines=lines))
    if kind == "Ledger":
        return frame(title, shown.to_dict(), height=height_of(charts=1))
    return None


def pretty(shown: Any, printer: Any, _is_cycle: bool) -> None:
    """Prints a native object as IPython asks for it."""
    view = _view(shown)
    printer.text(repr(shown) if view is None else view.text())


def _view(shown: Any) -> View | None:
    kind = type(shown).__name__
    if kind == "Receipt":
        rows = [(mib(one.bytes or 0), one.path, one.remedy()) for one in shown.holders]
        return View(shown.line(), rows, shown.advice)
    if kind == "StagesReport":
        each = [(one.name, one.own_peak_bytes, one.receipt.line()) for one in shown.stages]
        lines = str(shown).splitlines()[len(each) + 1 :]
        return View("stages", [(mib(size), name, line) for name, size, line in each], lines)
    if kind == "Ledger":
        rows = [(mib(one.bytes), one.name or str(one.kind), "") for one in shown.lines]
        unknown = (mib(shown.unknown_bytes), "unknown", "")
        return View(repr(shown)[1:-1], [*rows, unknown], [])
    return None
