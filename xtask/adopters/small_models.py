"""Small models with random weights, made on the spot: nothing is downloaded.

Each is a folder in the format of transformers. Their answers mean nothing; their memory is real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SEED = 17


def tokenizer(folder: Path) -> None:
    """Writes a tokenizer of letters and digits."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [*letters, *(f"##{letter}" for letter in letters)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": 128}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def bert(folder: Path, layers: int, *, scores: bool) -> int:
    """Writes a BERT of about 12.6 MB a layer, with one score a text or none. Returns its bytes."""
    import torch
    import transformers

    torch.manual_seed(SEED)
    tokenizer(folder)
    config = transformers.BertConfig(
        vocab_size=128,
        hidden_size=512,
        num_attention_heads=8,
        intermediate_size=2048,
        num_hidden_layers=layers,
        max_position_embeddings=128,
        num_labels=1,
    )
    kind = transformers.BertForSequenceClassification if scores else transformers.BertModel
    model = kind(config)
    return write_in_half(model, folder)


def write_in_half(model: Any, folder: Path) -> int:
    """Writes a model in half the bytes of what is loaded. Returns the bytes that are loaded.

    Weights of the same type would stay in the file's pages, which are not memory of the program.
    """
    size = sum(part.numel() * part.element_size() for part in model.parameters())
    model.half().save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(settings))
    return size


def layout(folder: Path) -> int:
    """Writes a detector of what is where on a page, of docling's kind. Returns its bytes."""
    import torch
    import transformers

    torch.manual_seed(SEED)
    labels = [
        "caption",
        "footnote",
        "formula",
        "list_item",
        "page_footer",
        "page_header",
        "picture",
    ]
    labels += ["section_header", "table", "text", "title"]
    model = transformers.RTDetrV2ForObjectDetection(
        transformers.RTDetrV2Config(id2label=dict(enumerate(labels)))
    )
    size = write_in_half(model, folder)
    transformers.RTDetrImageProcessor(size={"height": 320, "width": 320}).save_pretrained(folder)
    return size


def llama(folder: Path) -> int:
    """Writes a Llama without a tokenizer. Returns its bytes."""
    import torch
    import transformers

    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=512,
        intermediate_size=2048,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_hidden_layers=8,
        max_position_embeddings=128,
    )
    return write_in_half(transformers.LlamaForCausalLM(config), folder)


def chat_llama(folder: Path) -> int:
    """Writes a Llama of a few layers with a tokenizer and a template for chats. Returns the bytes that are loaded.

    lmms-eval's model `huggingface` takes the class that AutoModel names, and asks for bfloat16. A processor
    without instructions for it takes minutes for an answer, so that the class loads in float32.
    """
    import torch
    import transformers

    torch.manual_seed(SEED)
    tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{% for one in messages %}{% if one.content is string %}{{ one.content }}"
        "{% else %}{{ one.content[0].text }}{% endif %}{% endfor %}"
    )
    settings |= {"eos_token": "[SEP]", "pad_token": "[PAD]"}
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=256,
        eos_token_id=3,
        pad_token_id=0,
    )
    size = write_in_half(transformers.LlamaForCausalLM(config), folder)
    code = """
import torch
from transformers import LlamaForCausalLM


class Small(LlamaForCausalLM):
    @classmethod
    def from_pretrained(cls, *arguments, **keywords):
        keywords.pop("torch_dtype", None)
        return super().from_pretrained(*arguments, **keywords | {"dtype": torch.float32})
"""
    (folder / "modeling_small.py").write_text(code.lstrip())
    written = json.loads((folder / "config.json").read_text())
    written["auto_map"] = {"AutoModel": "modeling_small.Small"}
    (folder / "config.json").write_text(json.dumps(written))
    return size
