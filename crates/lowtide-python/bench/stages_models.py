"""Six Hugging Face models with random weights, as a retrieval pipeline has them one after another.

Nothing is downloaded: each is made from a configuration, and its inputs are random token ids, so
that no tokeniser is needed. `full` is for a GPU (bfloat16, 29 GiB in all, the largest 9 GiB);
`tiny` has the same classes and the same order for the host's memory (float32).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import transformers

try:
    from sentence_transformers import SentenceTransformer
except (ImportError, OSError, RuntimeError):
    SentenceTransformer = None  # Not there, or at odds with another package: see MeanPooling.

# transformers imports when it is asked. That is no part of a model: it is done before all of them.
for _name in ("Bert", "Roberta", "XLMRoberta", "Llama"):
    getattr(transformers, f"{_name}Model")

Config = dict[str, Any]


class Spec(NamedTuple):
    """One model: what it is called, how it is made, how one asks it, and its sizes."""

    name: str
    make: Callable[[Config], Any]
    ask: Callable[[Any, Config], Any]
    full: Config
    tiny: Config


class Run(NamedTuple):
    """Where and how large: the same for every model of a run."""

    device: str
    size: str
    seed: int
    scale: float
    batch: int
    tokens: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device == "cpu" else torch.bfloat16


def encoder_config(kind: str, sizes: Config) -> Any:
    """The configuration of an encoder of BERT's shape."""
    width = sizes["width"]
    return getattr(transformers, kind)(
        vocab_size=sizes["vocabulary"],
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sizes["layers"],
        num_attention_heads=max(1, width // 64),
        max_position_embeddings=514,
        num_labels=1,
    )


def encoder(model: str, config: str) -> Callable[[Config], Any]:
    def make(sizes: Config) -> Any:
        return getattr(transformers, model)(encoder_config(config, sizes))

    return make


class Backbone(torch.nn.Module):
    """The first module of a SentenceTransformer, without the tokeniser that the real one reads."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.auto_model = model

    def forward(self, features: Config, **_: Any) -> Config:
        asked = {name: features[name] for name in ("input_ids", "attention_mask")}
        features["token_embeddings"] = self.auto_model(**asked).last_hidden_state
        return features


class MeanPooling(torch.nn.Module):
    """The last module of a SentenceTransformer; the library's own changes its arguments by version."""

    def forward(self, features: Config, **_: Any) -> Config:
        mask = features["attention_mask"].unsqueeze(-1).to(features["token_embeddings"].dtype)
        summed = (features["token_embeddings"] * mask).sum(1)
        features["sentence_embedding"] = summed / mask.sum(1).clamp(min=1e-9)
        return features


def sentence_encoder(sizes: Config) -> Any:
    """A SentenceTransformer where the library is there and takes modules; else its like."""
    backbone = Backbone(transformers.XLMRobertaModel(encoder_config("XLMRobertaConfig", sizes)))
    if SentenceTransformer is None:
        return torch.nn.Sequential(backbone, MeanPooling())
    where = str(next(backbone.parameters()).device)
    try:
        return SentenceTransformer(modules=[backbone, MeanPooling()], device=where)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError, OSError, ImportError):
        # Versions differ in what they want of a module; the shape of the work is the same.
        return torch.nn.Sequential(backbone, MeanPooling())


def causal(sizes: Config) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["width"],
        intermediate_size=sizes["inner"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["width"] // 128,
        num_key_value_heads=max(1, sizes["width"] // 512),
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def embed(model: Any, inputs: Config) -> Any:
    return model(**inputs).last_hidden_state


def embed_sentences(model: Any, inputs: Config) -> Any:
    return model(dict(inputs))["sentence_embedding"]


def rank(model: Any, inputs: Config) -> Any:
    return model(**inputs).logits


def generate(model: Any, inputs: Config) -> Any:
    return model.generate(**inputs, do_sample=False, max_new_tokens=16, min_new_tokens=16)


def sizes(width: int, layers: int, vocabulary: int, **more: int) -> Config:
    return {"width": width, "layers": layers, "vocabulary": vocabulary, **more}


SPECS = (
    Spec(
        "encoder (Bert)",
        encoder("BertModel", "BertConfig"),
        embed,
        sizes(1536, 36, 30_522),
        sizes(384, 4, 8_000),
    ),
    Spec(
        "encoder (Roberta)",
        encoder("RobertaModel", "RobertaConfig"),
        embed,
        sizes(2048, 32, 50_265),
        sizes(512, 4, 8_000),
    ),
    Spec(
        "sentence encoder (XLM-Roberta)",
        sentence_encoder,
        embed_sentences,
        sizes(2048, 36, 250_002),
        sizes(512, 5, 16_000),
    ),
    Spec(
        "cross-encoder (Roberta)",
        encoder("RobertaForSequenceClassification", "RobertaConfig"),
        rank,
        sizes(2560, 40, 50_265),
        sizes(640, 6, 8_000),
    ),
    Spec(
        "causal (Llama)",
        causal,
        generate,
        sizes(4096, 21, 32_000, inner=14_336),
        sizes(1024, 4, 8_000, inner=2_816),
    ),
    Spec(
        "cross-encoder (Bert)",
        encoder("BertForSequenceClassification", "BertConfig"),
        rank,
        sizes(2048, 48, 30_522),
        sizes(576, 6, 8_000),
    ),
)


@contextlib.contextmanager
def made_there(run: Run) -> Iterator[None]:
    """What is made inside is made on the device and in the type asked for, never on the host first."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(run.dtype)
    try:
        with torch.device(run.device):
            yield
    finally:
        torch.set_default_dtype(before)


def sizes_of(spec: Spec, run: Run) -> Config:
    asked = dict(spec.tiny if run.size == "tiny" else spec.full)
    asked["layers"] = max(1, round(asked["layers"] * run.scale))
    return asked


def load(spec: Spec, run: Run) -> Any:
    """A model with random weights, the same for the same seed."""
    torch.manual_seed(run.seed)
    with made_there(run):
        model = spec.make(sizes_of(spec, run))
    return model.eval()


def batch(spec: Spec, run: Run, number: int) -> Config:
    """Random token ids, as a tokeniser would give them; each second row is padded at its start."""
    dice = torch.Generator().manual_seed(run.seed + number)
    vocabulary = sizes_of(spec, run)["vocabulary"]
    ids = torch.randint(3, vocabulary, (run.batch, run.tokens), generator=dice)
    mask = torch.ones_like(ids)
    mask[1::2, : run.tokens // 4] = 0
    return {"input_ids": ids.to(run.device), "attention_mask": mask.to(run.device)}


def weights_bytes(model: Any) -> int:
    every = [*model.parameters(), *model.buffers()]
    return sum(one.nbytes for one in {one.data_ptr(): one for one in every}.values())


def digest(outputs: Any) -> float:
    """One number that differs where the first outputs do. A mean would not: layers normalise it."""
    first = outputs.flatten()[:256].double().cpu()
    return float((first * torch.cos(torch.arange(len(first), dtype=torch.float64))).sum())
