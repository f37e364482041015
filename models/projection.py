"""A linear layer behind the pooling, such as 3584 -> 2048: fewer dimensions to keep and to search.

In the format of sentence-transformers' `Dense`: a folder with config.json and model.safetensors, named by the contract
and standing beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models.errors import ModelError

FOLDER = "2_Dense"
IDENTITY = "torch.nn.modules.linear.Identity"


def fresh(in_features: int, out_features: int, seed: int) -> nn.Linear:
    """Without a bias, drawn by `seed`; on average it keeps lengths, and so similarities about as they were."""
    random = torch.Generator().manual_seed(seed)
    layer = nn.Linear(in_features, out_features, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(out_features, in_features, generator=random) / out_features**0.5)
    return layer


def save(layer: nn.Linear, folder: Path) -> None:
    """Raises ModelError for weights that are not finite."""
    if not all(bool(torch.isfinite(weight).all()) for weight in layer.parameters()):
        raise ModelError(f"projection {folder}: not finite; nothing was saved; lower the learning rate")
    folder.mkdir()
    about = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": IDENTITY,
    }
    (folder / "config.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    weights = {
        f"linear.{name}": weight.detach().cpu().float().contiguous() for name, weight in layer.named_parameters()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def find(name: str, *homes: Path) -> Path:
    """The projection's folder in the first of `homes` that has it: an adapter may bring one, or leave the base's."""
    return next((home / name for home in homes if (home / name).is_dir()), homes[0] / name)


def dimensions(folder: Path) -> int:
    """Of the vectors that it gives."""
    return int(json.loads((folder / "config.json").read_text())["out_features"])


def load(folder: Path, in_features: int) -> nn.Linear:
    """Frozen, float32. Raises ModelError for a folder that is none, has an activation, or is for other lengths."""
    try:
        about = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError) as error:
        raise ModelError(f"projection {folder}: cannot be read ({error}); expected a Dense layer; check it") from None
    given = about.get("in_features"), about.get("activation_function", IDENTITY)
    if given != (in_features, IDENTITY):
        raise ModelError(
            f"projection {folder}: from {given[0]} dimensions, {given[1]}; expected from {in_features}, {IDENTITY};"
            " others are not read yet"
        )
    layer = nn.Linear(in_features, int(about["out_features"]), bias="linear.bias" in weights)
    layer.load_state_dict({name.removeprefix("linear."): weight for name, weight in weights.items()})
    return layer.requires_grad_(False)
