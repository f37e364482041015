"""A trial of an adapter at plan time: which layers it changes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers.initialization import no_init_weights

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.loading import HEADS, silence_transformers, train_in_float32

TASKS: dict[str, tuple[Any, str]] = {
    "backbone": (transformers.AutoModel, "FEATURE_EXTRACTION"),
    "causal": (transformers.AutoModelForCausalLM, "CAUSAL_LM"),
    "classifier": (transformers.AutoModelForSequenceClassification, "SEQ_CLS"),
}
"""Kind of model, as in `ratchet.models.footprint` -> (auto class, PEFT's `task_type`)."""

TIED = ("lm_head", "embed_tokens", "embed_out", "wte", "word_embeddings")
"""Names of modules that may share their weight with another one."""


@lru_cache(maxsize=32)
def try_adapter(
    base: Path, kind: Literal["backbone", "causal", "classifier"], target_modules: str, changed: int
) -> None:
    """Raise ModelError, beginning with `target_modules`, for modules that PEFT or training cannot adapt. Reads the
    config only. changed: time of the last change of the folder, for the cache."""
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
    tied = config.tie_word_embeddings or config.get_text_config().tie_word_embeddings
    for layer in layers:
        if tied and layer.rpartition(".")[2] in TIED:
            raise ModelError(
                f"target_modules: {target_modules} given, and the weight of {layer} is tied; expected other layers;"
                " leave it out"
            )
