"""How an answer, a receipt, a report or a ledger is displayed: a title, a small table and a few sentences.

A notebook shows the HTML. It has no script, loads nothing, and its colours are those of the page.
"""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from .data import mib

_TABLE = "border-collapse: collapse; background: none"
_CELL = "text-align: left; vertical-align: top; padding: 1px 1em 1px 0"
_BREAKS = ("white-space: nowrap", "overflow-wrap: anywhere", "")


class View(NamedTuple):
    """A title, rows of a size, a holder and what to do, and what is said below."""

    title: str
    rows: list[tuple[str, str, str]]
    below: list[str]

    def html(self) -> str:
        """Returns the table as HTML."""
        marked = [[escape(size), escape(who), _code(to_do)] for size, who, to_do in self.rows]
        styled = [zip(_BREAKS, row) for row in marked]
        cells = [[f'<td style="{_CELL}; {how}">{one}</td>' for how, one in row] for row in styled]
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        below = "".join(f"<div>{escape(one)}</div>" for one in self.below)
        table = f'<table style="{_TABLE}">{rows}</table>' if rows else ""
        return f"<div><div><b>{escape(self.title)}</b></div>{table}{below}</div>"

    def text(self) -> str:
        """Returns the table as lines of text."""
        rows = [f"{size:>14}  {who}{to_do and '  →  ' + to_do}" for size, who, to_do in self.rows]
        return "\n".join([self.title, *rows, *(f"  {one}" for one in self.below)])


def _code(text: str) -> str:
    return text and f"<code>{escape(text)}</code>"


def html(shown: Any) -> str | None:
    """Returns a native object as HTML, or None if it has no table."""
    view = _view(shown)
    return None if view is None else view.html()


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
