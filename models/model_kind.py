"""Detection of what a model's path holds, by its files and config.json: an encoder, a decoder, an adapter, weights.

Imports nothing heavy, since plans check models.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from ratchet.errors import ModelError

Kind = TypeVar("Kind")

NO_TEXT = re.compile("CLIP|Image|Vision|ViT|Audio|Speech|Wav2Vec")
"""Parts of the names of classes that do not read text."""
POSITIONS_AFTER_PADDING = frozenset(
    (
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "roberta-prelayernorm",
        "camembert",
        "mpnet",
        "longformer",
        "data2vec-text",
        "ibert",
        "xmod",
        "luke",
        "markuplm",
        "esm",
    )
)
"""The `model_type` of models whose positions begin after that of the padding token."""
ENCODER_DECODERS = (
    "t5",
    "mt5",
    "umt5",
    "longt5",
    "bart",
    "pegasus",
    "marian",
    "mbart",
    "led",
    "whisper",
)
"""Prefixes of the `model_type` of models that have an encoder and a decoder."""
NO_EMBEDDERS = ("a reranker", "an encoder-decoder", "a model of images or sound")


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder. Raises ModelError if there is none or it is no JSON object, and says what
    the folder holds instead."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"model {folder}: {_describe_other(folder)}")
    return read_object(file)


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder. Raises ModelError for anything else."""
    found = read_json(file)
    if not isinstance(found, dict):
        raise ModelError(
            f"{file}: a {type(found).__name__} given; expected an object; fetch or save the model again"
        )
    return found


def read_optional(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is no file. Raises ModelError for any other content."""
    if file.is_file():
        return read_object(file)
    return {}


def read_json(file: Path) -> Any:
    """Return the JSON in a file of a model folder. Raises ModelError if the file is missing or no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{file}: missing; expected a Hugging Face model folder; check the path"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{file}: not JSON ({error}); expected a whole file; fetch or save the model again"
        ) from None


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Write a file of a model folder. Equal values are equal bytes."""
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_dataclass(file: Path, kind: type[Kind]) -> Kind:
    """Return a dataclass from its fields in a JSON file of a model folder. Raises ModelError for unknown and missing
    fields, and for values of another type."""
    try:
        return TypeAdapter(kind).validate_python(read_object(file))
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        known = ", ".join(field.name for field in fields(cast(Any, kind)))
        raise ModelError(
            f"{file}: {name}: {problem['msg'].lower()}; expected a {kind.__name__} with the fields {known}; correct the"
            " file"
        ) from None


def check_no_custom_code(folder: Path) -> None:
    """Raise ModelError for a model whose classes are Python files of its own, which are never run."""
    config = read_config(folder)
    own_code = config.get("auto_map")
    if not own_code:
        return
    # A known model_type would load as the plain architecture, without what the code changes (such as the attention).
    raise ModelError(
        f"model {folder}: needs its own code ({own_code}); expected a model of transformers, since code from a model"
        " folder is never run; give another model, or remove auto_map from config.json if it is a plain"
        f" {config.get('model_type')!r}"
    )


def check_decoder(folder: Path) -> None:
    """Raise ModelError for a folder whose config.json is not that of a decoder (causal language model)."""
    _refuse(
        folder, (*NO_EMBEDDERS, "an encoder"), "a decoder (causal LM), such as Qwen2ForCausalLM"
    )


def check_embedder(folder: Path) -> None:
    """Raise ModelError for a folder whose config.json is that of a reranker, of an encoder-decoder or of its encoder
    alone."""
    config = read_config(folder)
    if (
        str(config.get("model_type", "")).startswith(ENCODER_DECODERS)
        and describe_kind(config) == "an encoder"
    ):
        raise ModelError(
            f"model {folder}: the encoder of an encoder-decoder ({config['model_type']}); expected an encoder such as"
            " BertModel, or a decoder; give another model"
        )
    _refuse(folder, NO_EMBEDDERS, "an embedder: an encoder or a decoder")


def _refuse(folder: Path, kinds: Sequence[str], expected: str) -> None:
    config = read_config(folder)
    kind = describe_kind(config)
    if kind in kinds:
        names = ", ".join(config.get("architectures") or [str(config.get("model_type"))])
        raise ModelError(
            f"model {folder}: this is {kind} ({names}); expected {expected}; give another model"
        )


def count_positions(config: dict[str, Any]) -> int | None:
    """Return the number of tokens that a model has positions for; None where config.json says nothing.

    RoBERTa and its relatives number positions from `pad_token_id` + 1 on, so that 512 of 514 can be used."""
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    if positions is None:
        return None
    return int(positions) - count_unused_positions(config)


def count_unused_positions(config: dict[str, Any]) -> int:
    """Return the number of a model's first positions that no token has."""
    after_padding = str(config.get("model_type", "")) in POSITIONS_AFTER_PADDING
    if after_padding:
        return int(config.get("pad_token_id", 1)) + 1
    return 0


def describe_kind(config: dict[str, Any]) -> str:
    """Return the kind of model that a config.json describes, with its article, such as `a decoder`."""
    names = " ".join(config.get("architectures") or [])
    kind = str(config.get("model_type", "")).lower()
    if "SequenceClassification" in names:
        return "a reranker"
    if "CausalLM" in names:
        return "a decoder"
    if NO_TEXT.search(names):
        return "a model of images or sound"
    if any(name in names for name in ("Encoder", "MaskedLM", "PreTraining")):
        return "an encoder"
    if "ConditionalGeneration" in names or kind.startswith(ENCODER_DECODERS):
        return "an encoder-decoder"
    if kind == "new" or any(
        part in kind for part in ("bert", "xlm", "mpnet", "electra", "deberta", "ernie")
    ):  # GTE
        return "an encoder"
    return "a model"


def _describe_other(folder: Path) -> str:
    """Return what a folder without config.json is, and what to do."""
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = read_object(adapter).get("base_model_name_or_path") or "its base"
        return (
            f"this is a LoRA adapter of {base}; expected a whole model; merge it first (ratchet run jobs/merge"
            f" --set base={base} --set adapter={folder} --set corpus=... --out ...)"
        )
    todo = "check the path"
    inside = list(folder.glob("*/config.json"))
    if len(inside) == 1:
        todo = f"did you mean '{inside[0].parent}'?"
    return f"no config.json; expected a Hugging Face model folder; {todo}"
