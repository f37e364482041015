"""A linear layer after the pooling, such as 3584 -> 2048, for fewer dimensions to store and search.

The format is that of the `Dense` module of sentence-transformers: a folder with config.json and model.safetensors,
beside the encoding config that names it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ratchet.errors import ModelError
from ratchet.models.model_files import check_part
from ratchet.models.model_kind import write_json

FOLDER = "2_Dense"
IDENTITY = "torch.nn.modules.linear.Identity"


def init(in_features: int, out_features: int, seed: int, *, bias: bool = False) -> nn.Linear:
    """Return a random projection, which keeps lengths and similarities on average. bias: add a bias, which is 0."""
    random = torch.Generator().manual_seed(seed)
    layer = nn.Linear(in_features, out_features, bias=bias)
    with torch.no_grad():
        if layer.bias is not None:
            layer.bias.zero_()
        layer.weight.copy_(
            torch.randn(out_features, in_features, generator=random) / out_features**0.5
        )
    return layer


def save(layer: nn.Linear, folder: Path) -> None:
    """Write the projection folder. Raises ModelError for weights that are not finite."""
    if not all(bool(torch.isfinite(weight).all()) for weight in layer.parameters()):
        raise ModelError(
            f"projection {folder}: not finite; nothing was saved; lower the learning rate"
        )
    folder.mkdir()
    about: dict[str, Any] = {"in_features": layer.in_features, "out_features": layer.out_features}
    about |= {"bias": layer.bias is not None, "activation_function": IDENTITY}
    write_json(folder / "config.json", about)
    weights = {}
    for name, weight in layer.state_dict().items():
        weights[f"linear.{name}"] = weight.cpu().float().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def find(name: str, *folders: Path) -> Path:
    """Return the projection folder in the first of `folders` that has it: the adapter's before the base's. Raises
    ModelError for a name that leads out of the folder."""
    check_part(folders[0], name)
    return next(
        (folder / name for folder in folders if (folder / name).is_dir()), folders[0] / name
    )


def load_layers(names: str, in_features: int, *folders: Path) -> nn.Linear:
    """Load the projection that an encoding config names, each folder from the first of `folders` that has it (`find`).
    Linear layers one after another are one layer, their product. Raises ModelError as `load` does."""
    first, *others = names.split(",")
    layer = load(find(first, *folders), in_features)
    for name in others:
        following = load(find(name, *folders), layer.out_features)
        product = nn.Linear(in_features, following.out_features).requires_grad_(False)
        product.weight.copy_(following.weight @ layer.weight)
        product.bias.copy_(following(layer(torch.zeros(in_features))))
        layer = product
    return layer


def load(folder: Path, in_features: int) -> nn.Linear:
    """Load a projection, frozen, in float32: a folder, or a file of `torch.save` with the state dict of a linear layer.
    Raises ModelError for unreadable weights, an activation function or another input dimension."""
    try:
        if folder.is_file():
            state = torch.load(folder, map_location="cpu", weights_only=True)  # which runs no code
            about: dict[str, Any] = dict(
                zip(("out_features", "in_features"), state["weight"].shape, strict=True)
            )
            weights = {f"linear.{name}": weight for name, weight in state.items()}
        else:
            about = json.loads((folder / "config.json").read_text())
            weights = load_file(folder / "model.safetensors")
        bias = "linear.bias" in weights
        layer = nn.Linear(int(about["in_features"]), int(about["out_features"]), bias=bias)
        if layer.in_features == in_features:
            layer.load_state_dict(
                {name.removeprefix("linear."): weight for name, weight in weights.items()}
            )
    except Exception as error:  # a damaged file raises errors of many types
        raise ModelError(
            f"projection {folder}: cannot be read ({' '.join(str(error).split())[:200]}); expected a Dense layer, or a"
            " file of torch.save with the state dict of one linear layer; check it"
        ) from None
    given = about.get("in_features"), about.get("activation_function", IDENTITY)
    if given != (in_features, IDENTITY):
        raise ModelError(
            f"projection {folder}: from {given[0]} dimensions, {given[1]}; expected from {in_features}, {IDENTITY};"
            " other Dense layers are not supported"
        )
    return layer.requires_grad_(False)
