"""Somebody else's package, which remembers what it was shown."""

from typing import Any

_watched: dict[str, Any] = {}


def watch(model: Any) -> None:
    _watched[type(model).__name__] = {"forward": model.forward}
