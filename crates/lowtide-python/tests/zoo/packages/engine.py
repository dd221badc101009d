"""An engine with everything that R18 lists: what a server for language models really has.

Everything refers to the model, and some of it to everything else. Nothing here knows lowtide.
"""

from typing import Any

import torch


class Model(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)


class Part:
    """A part of the engine: it knows the runner, and holds what it is given."""

    def __init__(self, runner: "Runner", **held: Any) -> None:
        self.runner = runner
        self.__dict__.update(held)


class Runner:
    """All of R18, by the names that engines give them."""

    def __init__(self, make: Any) -> None:
        self.model = Model(make())
        self.kv_caches = [make() for _ in range(2)]
        self.attn_groups = [Part(self, metadata=make())]
        self.kv_cache_config = Part(self, tensors={"layer.0": self.kv_caches[0]})
        self.model_state = Part(self, positions=make())
        self.speculator = Part(self, draft=Model(make()), target=self.model)
        self.pooling_runner = Part(self, model=self.model)
        self.cudagraph_manager = Part(self, graphs={}, buffers={32: make()})
        self.intermediate_tensors = {"hidden_states": make()}
        self.encoder_cache = {"image-0": make()}
        self.workspace = (make(),)
        context = {"layer.0": Part(self, kv_cache=self.kv_caches)}
        self.vllm_config = Part(self, static_forward_context=context)
        self.execute = self._execute  # a bound method: one more way back to the runner

    def _execute(self) -> torch.Tensor:
        return self.model.weight[:4]
