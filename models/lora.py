"""LoRA adapters (Hu et al. 2021) through PEFT, in its own file format."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from models.errors import ModelError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def attach(
    model: Any,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    targets: str | list[str],
    seed: int,
    whole: Sequence[str] = (),
    task: str = "FEATURE_EXTRACTION",
) -> PeftModel:
    """The model with a fresh adapter: only the adapter trains. It changes nothing until it is trained (B = 0).

    targets: `all-linear`, or names of layers. whole: layers that are trained and saved whole, such as a fresh head.
    task: PEFT's name for what the model is for, so that `AutoPeftModel...` finds the class. Raises ModelError for names
    that the model does not have.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # PEFT divides by the rank: it need not be whole
        lora_dropout=dropout,
        target_modules=targets,
        bias="none",
        task_type=task,
        modules_to_save=list(whole) or None,
        exclude_modules=list(whole) or None,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise ModelError(f"lora targets: {targets} given; {error}; `all-linear` fits any model") from None
    finally:
        torch.random.set_rng_state(state)


def save(model: PeftModel, folder: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors. Raises ModelError for an empty or infinite adapter."""
    for name, parameter in model.named_parameters():
        if "lora_" in name and (parameter.numel() == 0 or not bool(torch.isfinite(parameter).all())):
            raise ModelError(f"adapter: {name} is empty or not finite; nothing was saved; lower the learning rate")
    model.save_pretrained(str(folder), safe_serialization=True)
    (folder / "README.md").unlink(missing_ok=True)
    # PEFT writes a set of names, in another order in each process, and the place of the base on this machine: neither
    # is the adapter, and the same adapter must be the same bytes.
    config = json.loads((folder / CONFIG).read_text())
    config["base_model_name_or_path"] = None
    for name in ("target_modules", "modules_to_save"):
        if isinstance(config.get(name), list):
            config[name] = sorted(config[name])
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(model: Any, folder: Path, *, trainable: bool = False) -> PeftModel:
    """The model with a saved adapter. Raises ModelError for a folder without one, or one for another model."""
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ModelError(f"adapter {folder}: no {CONFIG} and {WEIGHTS}; expected a PEFT folder; check the path")
    try:
        return PeftModel.from_pretrained(model, str(folder), is_trainable=trainable, autocast_adapter_dtype=False)
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(
            f"adapter {folder}: does not fit the model ({first}); expected an adapter of this base"
        ) from None


def merged(model: Any, folder: Path) -> Any:
    """The plain model with the adapter added to its weights."""
    return load(model, folder).merge_and_unload()
