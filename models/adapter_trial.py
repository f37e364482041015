"""A trial of an adapter at plan time: which layers it changes, and whether it can be merged into the files."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers.initialization import no_init_weights

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.adapters.shard_merge import check_not_tied
from ratchet.models.loading import HEADS, silence_transformers, train_in_float32
from ratchet.models.model_files import read_weight_names

TASKS: dict[str, tuple[Any, str]] = {
    "backbone": (transformers.AutoModel, "FEATURE_EXTRACTION"),
    "causal": (transformers.AutoModelForCausalLM, "CAUSAL_LM"),
    "classifier": (transformers.AutoModelForSequenceClassification, "SEQ_CLS"),
}
"""Kind of model, as in `ratchet.models.footprint` -> (auto class, PEFT's `task_type`)."""


@lru_cache(maxsize=32)
def try_adapter(
    base: Path, kind: Literal["backbone", "causal", "classifier"], target_modules: str, changed: int
) -> None:
    """Raise ModelError, beginning with `target_modules`, for modules that PEFT or training cannot adapt, and for an
    adapter that could not be merged, since the model's files have other layers than the model.

    Reads the config, and of the weights the names. changed: time of the last change of the folder, for the cache."""
    auto, task = TASKS[kind]
    config = transformers.AutoConfig.from_pretrained(
        base, **({"num_labels": 1} if kind == "classifier" else {})
    )
    try:
        with silence_transformers(), torch.device("meta"), no_init_weights():
            model = auto.from_config(config)
    except (NotImplementedError, RuntimeError):  # an architecture that cannot be built without data
        return
    heads = [name for name in HEADS if kind == "classifier" and hasattr(model, name)]
    adapted = lora.attach(
        model,
        lora_r=1,
        lora_alpha=1,
        lora_dropout=0.0,
        target_modules=lora.split_names(target_modules),
        seed=0,
        modules_to_save=heads,
        task=task,
    )
    try:
        train_in_float32(adapted)
    except ModelError as error:
        raise ModelError(f"target_modules: {target_modules} given; {error}") from None
    layers = []
    for name, layer in adapted.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        layers.append(name.removeprefix("base_model.model."))
        if not layer.lora_A:  # PEFT names the weights of embeddings otherwise
            raise ModelError(
                f"target_modules: {target_modules} given, and {layers[-1]} is no linear layer; expected linear layers;"
                " leave it out, or set method=full"
            )
    check_not_tied(
        f"target_modules: {target_modules} given", base, [f"{layer}.weight" for layer in layers]
    )
    stored = {_drop_number(name.removesuffix(".weight")) for name in read_weight_names(base)}
    for layer in layers:
        name = f".{_drop_number(layer)}"
        own_pooler = kind == "classifier" and "pooler" in name  # a new layer is trained whole
        if not own_pooler and not any(
            f".{one}".endswith(name) or name.endswith(f".{one}") for one in stored
        ):
            raise ModelError(
                f"target_modules: {target_modules} given, for {base}, whose files have no layer {layer} (transformers"
                f" builds {config.model_type} of other layers than those that are saved), so that the adapter could"
                " not be merged; expected layers that the files have; name those, or set method=full"
            )


def _drop_number(name: str) -> str:
    """Return a layer's name without its number: layers of a model are alike."""
    return re.sub(r"\.\d+\.", ".*.", name)
