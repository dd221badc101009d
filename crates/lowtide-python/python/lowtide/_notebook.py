"""The extension of IPython: `%load_ext lowtide` brings `%why`, `%%stage NAME` and `%memory`."""

from __future__ import annotations

import ast
import threading
import time
from importlib import import_module
from itertools import count
from typing import Any

from ._devices.choose import device_of, why_none
from ._release.releasers import releaser_for
from ._runtime.view import as_data, frame, height_of

_LOOK_S = 0.5
_MOST_SAMPLES = 400
_names = (f"lowtide-{number}" for number in count(1))


def load_ipython_extension(shell: Any) -> None:
    """Registers `%why`, `%%stage` and `%memory`. IPython calls it."""
    display: Any = import_module("IPython.display").display
    mistake: Any = import_module("IPython.core.error").UsageError
    # What an answer tells to type has this name.
    shell.user_ns.setdefault("lowtide", import_module(__package__))

    def why(line: str) -> None:
        """Displays what keeps device memory in use, or what keeps an object: `%why model`."""
        # It is asked in the user's namespace, where the statements will run.
        try:
            answer = shell.ev(f"__import__('lowtide').why({line})")
        except Exception as error:  # noqa: BLE001  It is the user's line.
            raise mistake(f"{type(error).__name__}: {error}") from None
        display(answer)

    def stage(line: str, cell: str) -> None:
        """Runs the cell as a stage: `%%stage reranker`. Its variable `stage` can own models."""
        code = shell.transform_cell(cell)
        name = shell.compile.cache(code, shell.displayhook.prompt_count, raw_code=cell)
        title = line.strip().strip("'\"")
        opening = f"with __import__('lowtide').stage({title!r}) as stage: pass"
        tree = ast.parse(opening, name)
        block = tree.body[0]
        assert isinstance(block, ast.With)
        block.body = ast.parse(code, name).body or block.body
        before = shell.user_ns.get("stage")
        try:
            exec(compile(tree, name, "exec"), shell.user_ns)  # noqa: S102  It is the user's cell.
        finally:
            ended = shell.user_ns.get("stage")
            if ended is not before and getattr(ended, "receipt", None) is not None:
                display(ended.receipt)

    def memory(line: str) -> None:
        """Displays device memory by owner, while the cell runs: `%memory`, or `%memory cuda:1`."""
        device = device_of(line.strip() or None)
        if device is None:
            raise mistake(why_none())
        _Live(shell, display, device)

    shell.register_magic_function(memory, "line")
    shell.register_magic_function(why, "line")
    shell.register_magic_function(stage, "cell")


class _Live:
    """A chart of device memory that follows until its cell has ended.

    The chart is told new numbers by a second output, which has a script and is empty at the end: a chart that were
    displayed anew each time would flicker.
    """

    def __init__(self, shell: Any, display: Any, device: Any) -> None:
        self._html: Any = import_module("IPython.display").HTML
        self._shell = shell
        self._ledger = releaser_for(device).ledger
        self._title = f"memory on {device.name}"
        self._name = next(_names)
        self._samples: list[dict[str, Any]] = []
        self._pause_s = _LOOK_S
        self._has_ended = threading.Event()
        self._look()
        self._chart = display(self._frame(), display_id=True)
        self._news = display(self._html(""), display_id=True)
        self._thread = threading.Thread(target=self._follow, name=self._name, daemon=True)
        shell.events.register("post_run_cell", self._end)
        self._thread.start()

    def _look(self) -> None:
        ledger = self._ledger()
        if ledger is None:
            return
        self._samples.append({"at_s": time.time(), "ledgers": [ledger.to_dict()]})
        if len(self._samples) > _MOST_SAMPLES:
            del self._samples[1::2]
            self._pause_s *= 2

    def _frame(self) -> Any:
        return self._html(
            frame(self._title, *self._samples, height=height_of(charts=1), name=self._name)
        )

    def _follow(self) -> None:
        while not self._has_ended.wait(self._pause_s):
            self._look()
            data = as_data(self._title, self._samples, small=True).replace("<", "\\u003c")
            each = f"document.querySelectorAll('iframe[name={self._name}]')"
            tell = f"for (const one of {each}) one.contentWindow.postMessage({data}, '*')"
            self._news.update(self._html(f"<script>{tell}</script>"))

    def _end(self, *_result: object) -> None:
        self._shell.events.unregister("post_run_cell", self._end)
        self._has_ended.set()
        self._thread.join()
        self._look()
        self._chart.update(self._frame())
        self._news.update(self._html(""))
