"""The extension of IPython: `%load_ext lowtide` brings `%why` and `%%stage NAME`."""

from __future__ import annotations

import ast
from importlib import import_module
from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Registers `%why` and `%%stage`. IPython calls it."""
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

    shell.register_magic_function(why, "line")
    shell.register_magic_function(stage, "cell")
