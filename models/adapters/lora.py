"""LoRA adapters (Hu et al. 2021) with PEFT, in its file format."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from ratchet.errors import ModelError
from ratchet.models.model_files import find_weights, read_header
from ratchet.models.model_kind import read_object, write_json

if TYPE_CHECKING:
    from peft import PeftModel  # seconds of imports, which models without adapters do not need

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
SAME_BASE = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is. Others, such as PiSSA and LoRA-GA, change it too."""


def attach(
    model: Any,
    *,
    lora_r: int,
    lora_alpha: float,
    lora_dropout: float = 0.0,
    target_modules: str,
    seed: int = 0,
    modules_to_save: Sequence[str] = (),
    task: str = "FEATURE_EXTRACTION",
) -> "PeftModel":
    """Add a new adapter and freeze the other weights. The model's output is unchanged until it is trained (B = 0).

    target_modules: `all-linear`, or names of layers separated by commas. modules_to_save: layers whose full weights are
    trained and saved, such as a new head. task: PEFT's `task_type`, by which `AutoPeftModel...` finds the class. Raises
    ModelError for target_modules that the model does not have."""
    from peft import LoraConfig, get_peft_model

    names: str | list[str] = target_modules
    if target_modules != "all-linear":
        names = [name.strip() for name in target_modules.split(",")]
    left_out = list(modules_to_save)
    if (
        task == "FEATURE_EXTRACTION"
    ):  # an embedder does not use the output of a pooler, which its files may lack
        left_out += [name for name, _ in model.named_modules() if "pooler" in name]
    config = LoraConfig(
        r=lora_r,
        lora_alpha=lora_alpha,  # type: ignore[arg-type]  # PEFT divides by the rank: it need not be whole
        lora_dropout=lora_dropout,
        target_modules=names,
        bias="none",
        task_type=task,
        modules_to_save=list(modules_to_save) or None,
        exclude_modules=left_out or None,
    )
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
            torch.manual_seed(seed)
            return get_peft_model(model, config)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"target_modules: {target_modules} given, which PEFT refuses ({reason}); expected linear layers of the"
            " model that it adapts; name others, or set method=full"
        ) from None


def save(model: "PeftModel", folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors. Raises ModelError for weights that are not finite."""
    for name, parameter in model.named_parameters():
        if "lora_" in name and (
            parameter.numel() == 0 or not bool(torch.isfinite(parameter).all())
        ):
            raise ModelError(
                f"adapter: {name} is empty or not finite; nothing was saved; lower the learning rate"
            )
    # Only the trained adapter: another one may be loaded beside it for comparison.
    model.save_pretrained(str(folder), safe_serialization=True, selected_adapters=["default"])
    (folder / "README.md").unlink(missing_ok=True)
    # PEFT writes sets of names in an order that depends on the process, and the path of the base. Both are normalized,
    # so that equal adapters are equal bytes.
    config = read_object(folder / CONFIG)
    config["base_model_name_or_path"] = None
    for name in ("target_modules", "modules_to_save", "exclude_modules"):
        if isinstance(config.get(name), list):
            config[name] = sorted(config[name])
    write_json(folder / CONFIG, config)


def load(
    model: Any, folder: Path, *, trainable: bool = False, lora_dropout: float = 0.0
) -> "PeftModel":
    """Add a saved adapter to a plain model. lora_dropout: replaces the rate of the saved config. Raises ModelError for
    a folder without an adapter, or with an adapter of another model."""
    from peft import PeftConfig, PeftModel

    with fitting(folder):
        config = PeftConfig.from_pretrained(str(folder))
        config.lora_dropout = lora_dropout
        return PeftModel.from_pretrained(model, str(folder), is_trainable=trainable, config=config)


def merge(model: "PeftModel", dtype: torch.dtype) -> Any:
    """Return the base with the adapter in its weights. Each sum is computed in float32 and rounded once, to `dtype`.

    Layer by layer, on the model's device: beside the model, only one layer is in memory in float32."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            weight: Any = module.get_base_layer().weight
            weight.data = weight.data.float()
            module.merge()
            weight.data = weight.data.to(dtype)
    with warnings.catch_warnings(action="ignore"):  # that the layers are merged already
        return model.merge_and_unload()


def check_base_is_kept(folder: Path) -> None:
    """Raise ModelError for an adapter whose training changed the base, which PEFT does not repeat exactly."""
    start = read_object(folder / CONFIG).get("init_lora_weights")
    if start not in SAME_BASE:
        raise ModelError(
            f"adapter {folder}: init_lora_weights={start}; expected an adapter that keeps its base; train another"
            " adapter"
        )


def check_fits(base: Path, folder: Path) -> None:
    """Raise ModelError for a folder without an adapter, or with one of layers that the base's files lack. Reads only
    names."""
    with fitting(folder):
        names = read_header(folder / WEIGHTS)[1]
    check_base_is_kept(folder)
    stored = [f".{name}" for name in find_weights(base)]
    for name in names:
        layer, adapts, _ = name.removeprefix("base_model.model").partition(".lora_A")
        weight = f"{layer}.weight"
        if adapts and not any(one.endswith(weight) or weight.endswith(one) for one in stored):
            raise ModelError(
                f"adapter {folder}: adapts {layer[1:]}, which {base} does not have; expected an adapter of this base"
            )


@contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Context manager that raises ModelError for a folder without an adapter, or with an adapter of another model."""
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"adapter {folder}: no {CONFIG} and {WEIGHTS}; expected a PEFT folder; check the path"
        )
    try:
        with warnings.catch_warnings():
            # PEFT would only warn, and keep the initial weights of layers that the file lacks (another architecture).
            warnings.filterwarnings("error", message="Found missing adapter keys")
            yield
    except (
        AttributeError,
        KeyError,
        RuntimeError,
        SafetensorError,
        ValueError,
        UserWarning,
    ) as error:
        first = str(error).strip().splitlines()[0][:200]
        raise ModelError(
            f"adapter {folder}: does not fit the model ({first}); expected an adapter of this base"
        ) from None
