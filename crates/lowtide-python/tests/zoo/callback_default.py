"""A callback with a default argument.

`lambda step, batch=batch: …` binds the batch of this turn of the loop, as the books say. The list of
callbacks keeps all of them. Without its default the callback would fail: it is removed as a whole.
"""

from collections.abc import Callable
from typing import Any

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"trainer\.callbacks", r"batch"),
    cut=r"del .*trainer\.callbacks\[0\]",
    says=(r"del .*trainer\.callbacks\[0\]",),
    cure="trainer.callbacks.clear()",
    holder="trainer.callbacks",
)


class Trainer:
    def __init__(self) -> None:
        self.callbacks: list[tuple[int, Callable[..., Any]]] = []

    def at_step(self, step: int, callback: Callable[..., Any]) -> None:
        self.callbacks.append((step, callback))


if __name__ == "__main__":
    trainer = Trainer()
    trainer.at_step(10, lambda step, batch=big(): print(step, batch[0]))  # noqa: B008
    examine(CASE)
