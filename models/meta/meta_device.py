"""Models on PyTorch's meta device, where tensors have a shape and a dtype but no data. Only config.json is read."""

from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers.initialization import no_init_weights

from ratchet.models.loading import silence_transformers

Kind = Literal["backbone", "causal", "classifier"]
"""A model without a head, a causal language model, or a sequence classifier with one output."""
CLASSES = {
    "backbone": transformers.AutoModel,
    "causal": transformers.AutoModelForCausalLM,
    "classifier": transformers.AutoModelForSequenceClassification,
}


def load_config(folder: Path, kind: Kind) -> Any:
    """Return the config of a model folder; a classifier has one output."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if kind == "classifier":
        config.num_labels = 1
    return config


def build_on_meta(config: Any, kind: Kind, dtype: torch.dtype) -> Any:
    """Return a model on the meta device, where weights have no data."""
    with silence_transformers(), torch.device("meta"), no_init_weights():
        return CLASSES[kind].from_config(config, dtype=dtype)


def find_equal_layers(model: Any, target_modules: str) -> torch.nn.ModuleList:
    """Return a model's list of layers, to be shortened in place; an empty list if they differ in size, or if
    `target_modules` may name some of them by their numbers."""
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    found = [layers for layers in lists if len(layers) == depth]
    if len(found) == 1 and not any(map(str.isdecimal, target_modules)):
        sizes = set()
        for layer in found[0]:
            sizes.add(sum(weight.numel() for weight in layer.parameters()))
        if len(sizes) == 1:
            return found[0]
    return torch.nn.ModuleList()
