"""Merging of a LoRA adapter into safetensors files, one file at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.model_files import INDEX, list_weight_files, read_header
from ratchet.models.model_kind import read_object

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Changes = dict[str, dict[str, Tensor]]
PLAIN = "base_model.model."
TIED = ("lm_head", "embed_tokens", "embed_out", "wte", "word_embeddings")
"""Names of modules that may share their weight with another one."""
OUTPUTS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")
"""Ends of the names of a sequence classifier's last layer."""
REFUSED = {
    "use_rslora": False, "use_dora": False, "bias": "none", "lora_bias": False, "rank_pattern": {}, "alpha_pattern": {},
    "trainable_token_indices": None, "target_parameters": None, "peft_type": "LORA", "init_lora_weights": True,
    "use_qalora": False, "alora_invocation_tokens": None, "use_bdlora": None, "kasa_config": None,
}  # fmt: skip
"""Setting of an adapter config -> its supported value. A missing or empty setting is supported, too."""
SAME_BASE = ("gaussian", "orthogonal", "eva")
"""Further supported values of `init_lora_weights`. Others, such as PiSSA and LoRA-GA, change the base too."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file."""

    name: str
    file: str
    dtype: str
    shape: list[int]


def list_tensors(folder: Path) -> list[StoredTensor]:
    """Return the tensors of a model folder."""
    found = []
    for file in list_weight_files(folder):
        for name, about in read_header(folder / file)[1].items():
            found.append(StoredTensor(name, file, about["dtype"], about["shape"]))
    return found


def read_main_dtype(folder: Path) -> str:
    """Return the dtype, in the spelling of torch, in which most of a folder's weights are stored."""
    sizes: dict[str, int] = {}
    for tensor in list_tensors(folder):
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + prod(tensor.shape)
    return str(DTYPES.get(max(sizes, key=lambda name: sizes[name]), torch.float32)).removeprefix(
        "torch."
    )


def merge_shards(base: Path, adapter: Path, target: Path) -> None:
    """Write the weights of base plus adapter into the folder `target`, in the base's files and dtypes. The sums are
    computed in float32. The adapter and one file are in memory. Each file is renamed into place when it is complete.

    Layers that only the adapter has, such as a new head, are added to the last file. Raises ModelError for an adapter
    that does not fit, and for variants of LoRA such as DoRA."""
    scaling, transposed, changes, prefix, changed = match_adapter(base, adapter)
    new = {}
    for name, parts in changes.items():
        if name not in changed.values():
            new[name] = parts["whole"].to(getattr(torch, read_main_dtype(base)))
    files = list_weight_files(base)
    weight_map: dict[str, str] = {}
    total = 0
    for file in files:
        tensors = {}
        with safe_open(base / file, "pt") as source:
            for name in source.keys():  # noqa: SIM118
                plain = source.get_tensor(name)
                if name in changed:
                    plain = _apply(plain, changes[changed[name]], scaling, transposed)
                tensors[prefix + name] = plain
        if file == files[-1]:
            tensors |= new
        unfinished = target / f"{file}.unfinished"
        save_file(tensors, unfinished, metadata={"format": "pt"})
        unfinished.rename(target / file)
        for name, tensor in tensors.items():
            weight_map[name] = file
            total += tensor.nbytes
    if (base / INDEX).is_file():
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (target / INDEX).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def match_adapter(base: Path, adapter: Path) -> tuple[float, bool, Changes, str, dict[str, str]]:
    """Return (scaling, whether the adapter's changes are transposed, `read_changes`, and both results of `_match`).
    Reads no weights of the base. Raises ModelError as `merge_shards` does."""
    with lora.fitting(adapter):
        config = json.loads((adapter / lora.CONFIG).read_text())
        _check_variant(adapter, config)
        changes = read_changes(adapter)
        scaling = config["lora_alpha"] / config["r"]
    stored = list_tensors(base)
    transposed = bool(config.get("fan_in_fan_out"))
    prefix, changed = _match(adapter, changes, [tensor.name for tensor in stored])
    check_not_tied(f"adapter {adapter}", base, changes)
    for name, parts in changes.items():
        if name not in changed.values() and name.endswith(OUTPUTS) and len(parts["whole"]) != 1:
            raise ModelError(
                f"adapter {adapter}: its head {name} has {len(parts['whole'])} outputs; expected one, of a reranker;"
                " train another adapter"
            )
    for tensor in [one for one in stored if one.name in changed]:
        parts = changes[changed[tensor.name]]
        if "whole" in parts:
            shape = list(parts["whole"].shape)
        else:
            shape = [len(parts["B"]), parts["A"].shape[1]]
        if tensor.dtype not in DTYPES:
            raise ModelError(
                f"adapter {adapter}: {tensor.name} has dtype {tensor.dtype}; expected one of {list(DTYPES)}"
            )
        if tensor.shape != (shape[::-1] if transposed and "B" in parts else shape):
            raise ModelError(
                f"adapter {adapter}: does not fit the model ({tensor.name} is {tensor.shape}, not {shape}); expected an"
                " adapter of this base"
            )
    return scaling, transposed, changes, prefix, changed


def check_not_tied(where: str, base: Path, names: Iterable[str]) -> None:
    """Raise ModelError, beginning with `where`, for a change of a weight that a model shares between two layers. names:
    of the weights that are changed."""
    about = transformers.AutoConfig.from_pretrained(base)  # with the defaults of its class
    tied = about.tie_word_embeddings or about.get_text_config().tie_word_embeddings
    for name in names:
        if tied and name.split(".")[-2] in TIED:
            raise ModelError(
                f"{where}: it changes {name}, which is tied; expected other layers; train anew"
            )


def check_base_is_kept(adapter: Path) -> None:
    """Raise ModelError for an adapter whose training changed the base, which PEFT does not repeat exactly."""
    config = read_object(adapter / lora.CONFIG)
    _check_variant(adapter, {"init_lora_weights": config.get("init_lora_weights")})


def _check_variant(adapter: Path, config: Mapping[str, Any]) -> None:
    for name, expected in REFUSED.items():
        if (config.get(name) or expected) not in (expected, *SAME_BASE):
            raise ModelError(
                f"adapter {adapter}: {name}={config[name]}; expected {expected}; train another adapter"
            )


def read_changes(adapter: Path) -> Changes:
    """Return weight name (without PEFT's prefix) -> LoRA's `A` [r, in] and `B` [out, r], or a `whole` weight."""
    changes: Changes = {}
    for name, value in load_file(adapter / lora.WEIGHTS).items():
        module, _, part = name.removeprefix(PLAIN).partition(".lora_")
        if part not in ("", "A.weight", "B.weight"):
            raise ModelError(
                f"adapter {adapter}: {name} given; expected lora_A and lora_B of linear layers"
            )
        changes.setdefault(f"{module}.weight" if part else module, {})[part[:1] or "whole"] = value
    return changes


def _match(
    adapter: Path, changes: Mapping[str, Any], stored: list[str]
) -> tuple[str, dict[str, str]]:
    """Return the prefix that the stored names lack, and stored name -> name in `changes`.

    A checkpoint of a causal language model, loaded as its backbone, has a prefix that the adapter lacks. A checkpoint
    of a backbone, loaded as a classifier, lacks a prefix that the adapter has."""
    found: dict[str, str] = {}
    prefixes = set()
    for name, parts in changes.items():
        fitting = [
            one
            for one in stored
            if f".{one}".endswith(f".{name}") or f".{name}".endswith(f".{one}")
        ]
        if len(fitting) > 1 or (not fitting and "whole" not in parts):
            raise ModelError(
                f"adapter {adapter}: does not fit the model ({name} is {len(fitting)} times in it); expected an adapter"
                " of this base"
            )
        for one in fitting:
            found[one] = name
            prefixes.add(name.removesuffix(one) if len(name) > len(one) else "")
    if len(prefixes) > 1:
        raise ModelError(
            f"adapter {adapter}: does not fit the model (prefixes {sorted(prefixes)}); expected one"
        )
    return next(iter(prefixes), ""), found


def _apply(plain: Tensor, change: Mapping[str, Tensor], scaling: float, transposed: bool) -> Tensor:
    """Return the merged tensor in its stored dtype."""
    if "whole" in change:
        return change["whole"].to(plain.dtype).contiguous()
    delta = (change["B"].float() @ change["A"].float()).mul_(scaling)
    if transposed:
        delta = delta.T
    return delta.add_(plain).to(plain.dtype).contiguous()
