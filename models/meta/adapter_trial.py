"""A trial of an adapter at plan time: which layers it changes."""

from functools import lru_cache
from pathlib import Path

import torch

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.loading import HEADS, train_in_float32
from ratchet.models.meta.meta_device import Kind, build_on_meta, find_equal_layers, load_config

TASKS = {"backbone": "FEATURE_EXTRACTION", "causal": "CAUSAL_LM", "classifier": "SEQ_CLS"}
"""Kind of model -> PEFT's `task_type`."""

TIED = ("lm_head", "embed_tokens", "embed_out", "wte", "word_embeddings")
"""Names of modules that may share their weight with another one."""


@lru_cache(maxsize=32)
def try_adapter(base: Path, kind: Kind, target_modules: str, changed: int) -> None:
    """Raise ModelError, beginning with `target_modules`, for modules that PEFT or training cannot adapt. Reads the
    config only. changed: time of the last change of the folder, for the cache."""
    config = load_config(base, kind)
    try:
        model = build_on_meta(config, kind, torch.float32)
    except (NotImplementedError, RuntimeError):  # an architecture that cannot be built without data
        return
    del find_equal_layers(model, target_modules)[1:]
    heads = [name for name in HEADS if kind == "classifier" and hasattr(model, name)]
    adapted = lora.attach(
        model,
        lora_r=1,
        lora_alpha=1,
        target_modules=target_modules,
        modules_to_save=heads,
        task=TASKS[kind],
    )
    try:
        train_in_float32(adapted)
    except ModelError as error:
        raise ModelError(f"target_modules: {target_modules} given; {error}") from None
    tied = config.tie_word_embeddings or config.get_text_config().tie_word_embeddings
    for path, layer in adapted.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        name = path.removeprefix("base_model.model.")
        if not layer.lora_A:  # PEFT names the weights of embeddings otherwise
            raise ModelError(
                f"target_modules: {target_modules} given, and {name} is no linear layer; expected linear layers; leave"
                " it out, or set method=full"
            )
        if tied and name.rpartition(".")[2] in TIED:
            raise ModelError(
                f"target_modules: {target_modules} given, and the weight of {name} is tied; expected other layers;"
                " leave it out"
            )
