"""A package that watches models: it has a registry, and the program that uses it has no idea."""

from typing import Any

_watched: dict[str, Any] = {}


def watch_model(name: str, model: Any) -> None:
    """Draws curves of the model's weights."""
    _watched[name] = model


def forget_model(name: str) -> None:
    """Stops that."""
    _watched.pop(name, None)
