"""Model loading shared by embedders, rerankers and decoders: dtype, attention, dropout, missing weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_balanced_memory
from torch.nn import functional
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from ratchet.errors import ModelError
from ratchet.models import shared_models
from ratchet.models.adapters import lora
from ratchet.models.devices import BALANCED, resolve_device, resolve_dtype
from ratchet.models.engine import is_partitioned
from ratchet.models.model_files import (
    check_folder,
    check_quantizable,
    copy_tokenizer,
    read_main_dtype,
)

HEADS = ("classifier", "score", "pre_classifier", "head")
"""Names that transformers uses for the head of a sequence classifier. Heads are trained in full, never quantized."""
NF4: dict[str, Any] = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}


def open_model(
    kind: Any,
    base: Path,
    adapter: Path | None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    training: bool = False,
    quantization: str = "none",
    may_lack: Callable[[str], bool] = lambda name: False,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Any, list[str]]:
    """Load a model folder as the auto class `kind`. Returns the model on its device, and the names of missing weights.

    For inference an adapter is merged, as in the folder that `merging.merge` writes. It is not merged into a model in 4
    bits, where merged weights would be rounded to 4 bits again. Inside `shared_models.share`, a model for inference may
    be one that was opened before. training: no adapter, no dropout, and eager attention on CPUs, whose backward pass is
    faster there; on GPUs SDPA, or eager attention for architectures without it. dtype, device: see
    `ratchet.models.embedder.encoder.load`. quantization: `nf4` keeps linear layers in 4 bits with double quantization
    and computes in `dtype` (Dettmers et al. 2023, "QLoRA"). may_lack(name): whether a missing weight is accepted,
    besides an embedder's pooler; it is initialised at random. settings: overrides of the config. Raises ModelError for
    an unusable folder.
    """
    key = (kind, base, adapter, dtype, device, quantization, str(settings))
    shared = None if training else shared_models.current()
    if shared is not None and key in shared:
        before: tuple[Any, list[str]] = shared[key]
        return before
    check_folder(base)
    if quantization == "nf4":
        check_quantizable("quantization", base)
    config = transformers.AutoConfig.from_pretrained(base, **(settings or {}))
    kept = resolve_dtype(dtype, resolve_device(device))
    options: dict[str, Any] = {"dtype": kept}
    merges = adapter is not None and not training and quantization == "none"
    if merges:
        # Merged weights are rounded as in the merged folder, and then to the dtype of the computation.
        options["dtype"] = getattr(torch, read_main_dtype(base))
    heads = kind is transformers.AutoModelForSequenceClassification
    on_gpu = resolve_device(device).type != "cpu" and device != BALANCED
    if on_gpu and not heads and not is_deepspeed_zero3_enabled():
        # From the file to the GPU, not through the memory of the host. A new head is initialised on the CPU, so that
        # it is the same on all machines.
        options["device_map"] = {"": resolve_device(device)}
    if training:
        turn_off_dropout(config)
        if resolve_device(device).type == "cpu":
            options["attn_implementation"] = "eager"
    if quantization == "nf4":
        whole = [*HEADS, ".*pooler"] if heads else None
        how = {**NF4, "bnb_4bit_compute_dtype": kept, "llm_int8_skip_modules": whole}
        options["quantization_config"] = transformers.BitsAndBytesConfig(**how)
        if device == BALANCED:
            options["device_map"] = device
        else:
            options["device_map"] = {"": resolve_device(device)}
    embeds = kind is transformers.AutoModel  # then the output of a pooler is not used
    if embeds and config.model_type in ("bert", "roberta", "xlm-roberta"):
        options["add_pooling_layer"] = False
    with silence_transformers():
        model, found = kind.from_pretrained(
            base, config=config, output_loading_info=True, **options
        )
    if quantization != "none" and training:
        # On CPUs bitsandbytes repacks these weights at the first evaluation, into a layout without a backward pass.
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
    model.eager_for_training = (
        options.get("attn_implementation") == "eager" and model._supports_sdpa
    )  # see eval_mode
    if missing := sorted(
        n for n in found["missing_keys"] if not (may_lack(n) or (embeds and "pooler" in n))
    ):
        raise ModelError(
            f"model {base}: {missing[0]} and {len(missing) - 1} more weights are missing; expected all that"
            " config.json asks for; fetch or save the model again"
        )
    is_merged = not getattr(model, "is_loaded_in_4bit", False)
    if adapter is not None and not training:
        lora.check_base_is_kept(adapter)
        model = lora.load(model, adapter)
        if is_merged:
            model = lora.merge(model, options["dtype"])
    model = move_model(
        model, torch.device("cpu") if device == BALANCED else resolve_device(device), kept
    )
    if device == BALANCED and is_merged:
        model = spread_model(model)
    if heads:
        score_in_float32(model)
    model.train(training)
    opened = (model, sorted(found["missing_keys"]))
    if shared is not None:
        shared[key] = opened
    return opened


def turn_off_dropout(config: Any) -> None:
    """Set every dropout rate of a model's config to 0, also in the configs of its parts. LoRA has its own dropout."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            turn_off_dropout(value)
        elif "drop" in name and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, 0.0)


def move_model(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Move the model to a device, and its weights to a dtype; 4-bit weights stay. Buffers keep their dtype: rotary
    frequencies in bfloat16 would turn the positions of long texts by radians."""
    if getattr(model, "is_loaded_in_4bit", False):
        return model
    if any(map(is_partitioned, model.parameters())):
        for buffer in model.buffers():
            buffer.data = buffer.data.to(device)
        return model
    model.to(device=device)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


def spread_model(model: Any, room: dict[Any, int] | None = None) -> Any:
    """Spread the layers of a model on the CPU over GPUs, evenly and in their order, with accelerate. They run one after
    the other. Inputs go to the first GPU, where outputs of the whole model come back; tied weights are on one GPU.

    room: bytes by device. None: the free memory of all GPUs that this process sees. Raises ModelError if that is not
    enough.
    """
    whole = {"no_split_module_classes": list(model._no_split_modules or ())}
    room = get_balanced_memory(model, room, **whole)
    room.pop("cpu", None)
    places = infer_auto_device_map(model, room, **whole)
    if "disk" in places.values():
        raise ModelError(
            f"model: its layers do not fit on {len(room)} GPUs; expected room for all of it; give workers more GPUs, or"
            " set quantization=nf4"
        )
    first = next(iter(places.values()))
    return dispatch_model(
        model, places, main_device=first, skip_keys=model._skip_keys_device_placement
    )


def save_weights(model: Any, base: Path, folder: Path) -> None:
    """Write a model's weights and config, and the tokenizer of its base, as a Hugging Face folder. Raises ModelError
    for weights that are not finite."""
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(
                f"model: {name} is not finite; nothing was saved; lower the learning rate"
            )
    with silence_transformers():
        model.save_pretrained(str(folder), safe_serialization=True)
    copy_tokenizer(base, folder)


def train_in_float32(model: Any) -> None:
    """Make the trainable weights float32, over a model of any dtype, so that gradients add up in float32.

    Their layers compute in the dtype of their input: the weights are cast, not the activations, which would be kept for
    the backward pass in twice the size. Raises ModelError for a layer that is neither linear nor a layer norm.
    """
    for name, module in model.named_modules():
        own = [weight for weight in module.parameters(recurse=False) if weight.requires_grad]
        for weight in own:
            weight.data = weight.data.float()
        if hasattr(module, "lora_A"):
            module.cast_input_dtype_enabled = False  # of PEFT, which would cast the activations
        if own and type(module) in FLOAT32_LAYERS:
            module.__class__ = FLOAT32_LAYERS[type(module)]
        elif own and type(module) not in (
            *FLOAT32_LAYERS.values(),
            _ScoreLayer,
            torch.nn.ParameterDict,
        ):
            raise ModelError(
                f"layer {name}: a {type(module).__name__} is to be trained; expected linear layers and layer norms;"
                " leave it out of target_modules"
            )


def score_in_float32(model: Any) -> None:
    """Make a classifier with one output compute it in float32, over a model of any dtype: scores of about 20 that are
    rounded to bfloat16 differ by 0.125 or not at all."""
    outputs = []
    for layer in model.modules():
        if type(layer) is torch.nn.Linear and layer.out_features == 1:
            outputs.append(layer)
    if outputs:  # other layers with one output, such as gates of experts, come before it
        last: Any = outputs[-1]
        last.__class__ = _ScoreLayer
        if hasattr(last, "_old_forward"):  # accelerate's hooks, of spread models, call this one
            last._old_forward = MethodType(_ScoreLayer.forward, last)


def add_other_adapter(model: Any, folder: Path) -> None:
    """Load a saved adapter, for `other_adapter`, beside the one that a PEFT model trains. Raises ModelError as
    `lora.load` does. ZeRO-3 needs it before the engine starts: no layers can be added to partitioned ones."""
    with lora.fitting(folder):
        model.load_adapter(str(folder), OTHER)
    model.set_adapter(OTHER)
    train_in_float32(
        model
    )  # the layers of the other adapter too: they are trainable while they are active
    model.set_adapter("default")


@contextmanager
def other_adapter(model: Any, folder: Path) -> Iterator[None]:
    """Context manager in which a PEFT model has a saved adapter instead of the one that it trains, over the same base
    weights. It is loaded unless `add_other_adapter` has loaded it. Raises ModelError as `lora.load` does."""
    added = OTHER in model.peft_config
    if not added:
        add_other_adapter(model, folder)
    model.set_adapter(OTHER)
    try:
        yield
    finally:
        model.set_adapter("default")
        if not added:
            model.delete_adapter(OTHER)


OTHER = "other"


class _Linear(torch.nn.Linear):
    """Float32 weights, cast to the dtype of the input in each pass."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor | None = self.bias
        if bias is not None:
            bias = bias.to(input.dtype)
        return functional.linear(input, self.weight.to(input.dtype), bias)


class _ScoreLayer(_Linear):
    """Weights of any dtype, cast to float32 with the input in each pass, so that the scores are float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.float())


class _LayerNorm(torch.nn.LayerNorm):
    """Float32 weights, cast as in `_Linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias = (
            None if own is None else own.to(input.dtype) for own in (self.weight, self.bias)
        )
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


FLOAT32_LAYERS: dict[type, type] = {torch.nn.Linear: _Linear, torch.nn.LayerNorm: _LayerNorm}
"""Layer -> the layer that `train_in_float32` makes of it."""


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Context manager that hides the progress bars and warnings of transformers."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def make_attention_options(
    model: Any, positions_BL: np.ndarray, owner_BL: np.ndarray, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return `position_ids` [B, L] and `attention_mask` [B, 1, L, L] for a forward pass. owner_BL: a token attends to
    the tokens before it that have its owner, or owner 0.

    The mask is made on the device: it has L times as many numbers as its arguments. Eager attention gets it as a term
    of the logits."""
    owner = torch.from_numpy(owner_BL).to(device)
    before = torch.ones(owner.shape[1], owner.shape[1], dtype=torch.bool, device=device).tril()
    same = owner[:, :, None] == owner[:, None, :]
    seen = ((same | (owner[:, None, :] == 0)) & before)[:, None]
    by_hand = model.config._attn_implementation == "eager"  # which adds the mask to the logits
    mask = torch.where(seen, 0.0, -1e9) if by_hand else seen
    return {"position_ids": torch.from_numpy(positions_BL).to(device), "attention_mask": mask}


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Context manager that puts the model into eval mode and restores its mode afterwards. Where `open_model` chose
    eager attention for training, SDPA is used meanwhile, which needs a quarter less time on CPUs."""
    before = model.training
    attention = model.config._attn_implementation
    switches = attention == "eager" and getattr(model, "eager_for_training", False)
    if before:  # setting the mode of every layer takes a fifth of the time of a short query
        model.eval()
    if switches:
        model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        if before:
            model.train()
        if switches:
            model.set_attn_implementation(attention)
