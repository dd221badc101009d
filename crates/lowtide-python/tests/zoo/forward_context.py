"""A table of layers in a configuration that is shared.

An engine registers its attention layers by name in its configuration, so that custom operators find
them. The configuration outlives the engine.
"""

from zoo.case import big, examine, pinned

CASE = pinned(
    names=(r"static_forward_context",),
    cut=r"static_forward_context",
    cure="config.static_forward_context.clear()",
    holder="config.static_forward_context",
)


class Attention:
    def __init__(self, name: str, config: "Config") -> None:
        self.kv_cache = [big()]
        config.static_forward_context[name] = self


class Config:
    def __init__(self) -> None:
        self.static_forward_context: dict[str, Attention] = {}


if __name__ == "__main__":
    config = Config()
    Attention("model.layers.0.attn", config)
    examine(CASE)
