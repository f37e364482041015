"""Opens model folders for the encoder and the reranker alike: dtype, device, attention, dropout, missing weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from models.errors import ModelError
from models.weights import check_folder

DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "attention_dropout",
    "classifier_dropout",
    "embd_pdrop",
    "resid_pdrop",
)
"""Settings that are 0 while training: an adapter has its own dropout, and on CPUs dropout runs on one thread."""


def open_model(
    kind: Any,
    base: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    training: bool,
    quantization: str = "none",
    may_lack: Callable[[str], bool] = lambda name: False,
    **settings: Any,
) -> tuple[Any, list[str]]:
    """A model folder as one of transformers' auto classes, on the CPU (the caller moves it), and the names of weights
    that it lacks.

    training: no dropout, and on CPUs the attention whose backward is fast there. quantization: `nf4` keeps the linear
    layers in 4 bits, twice quantised, and multiplies in `dtype` (Dettmers et al. 2023, "QLoRA"). may_lack: names of
    weights that the folder need not hold (transformers fills them with random numbers). settings: of the
    configuration. Raises ModelError for an unusable folder.
    """
    check_folder(base)
    config = transformers.AutoConfig.from_pretrained(base, **settings)
    options: dict[str, Any] = {}
    if training:
        options["attn_implementation"] = "eager" if device.type == "cpu" else "sdpa"
        for name in DROPOUTS:
            if hasattr(config, name):
                setattr(config, name, 0.0)
    if quantization == "nf4":
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
        options["device_map"] = {"": device}
    # BERT's pooler is a layer on top that embeddings don't use.
    if kind is transformers.AutoModel and config.model_type in ("bert", "roberta", "xlm-roberta"):
        options["add_pooling_layer"] = False
    with quiet():
        model, found = kind.from_pretrained(base, config=config, dtype=dtype, output_loading_info=True, **options)
    if quantization != "none" and training:
        # On CPUs bitsandbytes lays such weights out anew at the first evaluation, which has no backward any more.
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
    missing = sorted(name for name in found["missing_keys"] if not may_lack(name))
    if missing:
        raise ModelError(
            f"model {base}: {missing[0]} and {len(missing) - 1} more weights are missing; expected all that"
            " config.json asks for; fetch or save the model again"
        )
    return model, sorted(found["missing_keys"])


def moved(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The model on a device in a dtype; one in 4 bits is where and what it is, and only its adapter is cast."""
    if not getattr(model, "is_loaded_in_4bit", False):
        return model.to(device=device, dtype=dtype)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and its table of weights that it did not need."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, whatever mode the model is in."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
