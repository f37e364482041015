"""An adapter made part of its base's weights, as a model folder of its own that others' libraries load as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from models import contract as contracts
from models import encoder, lora, pairs, projection, reranker
from models.contract import Contract
from models.errors import ModelError
from models.loading import quiet

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "added_tokens.json", "*.jinja")


@dataclass(frozen=True)
class Check:
    """What probe texts say about a merge. Embedders: cosine; rerankers: scores, in units of their spread."""

    drift: float
    """The largest difference between the merged folder, loaded anew, and the base with its adapter beside it."""
    change: float
    """The largest difference that the adapter makes."""


def is_reranker(base: Path, adapter: Path) -> bool:
    """By the contract that was saved with the adapter, else by the base's."""
    for folder in (adapter, base):
        if (folder / contracts.FILE).is_file():
            return "kind" in json.loads((folder / contracts.FILE).read_text())
    return False


def merge(base: Path, adapter: Path, target: Path) -> None:
    """Writes base plus adapter into the empty folder `target`: weights in the base's own precision (added up in
    float32), tokenizer, contract, and for embedders the layout of sentence-transformers.

    Raises ModelError for an adapter that does not fit.
    """
    kind = _stored(base)
    if is_reranker(base, adapter):
        agreed = pairs.read(contracts.home(base, adapter))
        model = reranker.load(base, adapter, dtype="float32", device="cpu", contract=agreed, packed=False).model
        agreed.write(target)
    else:
        contract = contracts.read(contracts.home(base, adapter))
        model = encoder.load(base, adapter, dtype="float32", device="cpu", contract=contract, packed=False).model
        if contract.projection:
            shutil.copytree(projection.find(contract.projection, adapter, base), target / projection.FOLDER)
            contract = replace(contract, projection=projection.FOLDER)
        contract.write(target)
        _sentence_transformers(contract, model.config.hidden_size, target)
    with quiet():
        model.to(kind).save_pretrained(target)
    for pattern in TOKENIZER_FILES:
        for path in base.glob(pattern):
            shutil.copyfile(path, target / path.name)
    _same_vocabulary(base, target)


def check(base: Path, adapter: Path, merged: Path, texts: Sequence[str]) -> Check:
    """Compares, in float32, what base, base with adapter (not merged) and the merged folder say about `texts`."""
    if len(texts) < 2:
        raise ModelError(f"merge: {len(texts)} probe texts; expected 2 or more; give some of the corpus")
    if is_reranker(base, adapter):
        agreed = pairs.read(merged)
        plain = None if not reranker.can_score(base) else _scores(reranker.load(base, **CPU, contract=agreed), texts)
        beside = reranker.load(base, **CPU, contract=agreed, training=True)
        beside.model = lora.load(beside.model, adapter)
        expected, found = _scores(beside, texts), _scores(reranker.load(merged, **CPU), texts)
        spread = float(expected.std()) + 1e-6
        change = np.inf if plain is None else float(np.abs(expected - plain).max()) / spread
        return Check(float(np.abs(expected - found).max()) / spread, change)
    contract = contracts.read(merged)
    with_adapter = encoder.load(base, **CPU, contract=contract, training=True, home=merged)
    with_adapter.model = lora.load(with_adapter.model, adapter)
    vectors = [
        _unit(one.encode(texts, "passage"))
        for one in (
            encoder.load(base, **CPU, contract=contract, home=merged),
            with_adapter,
            encoder.load(merged, **CPU),
        )
    ]
    plain_ND, expected_ND, found_ND = vectors
    return Check(float((1 - (expected_ND * found_ND).sum(1)).max()), float((1 - (expected_ND * plain_ND).sum(1)).max()))


CPU: dict[str, Any] = {"dtype": "float32", "device": "cpu"}


def _scores(model: reranker.Reranker, texts: Sequence[str]) -> np.ndarray:
    """Of each text as a query with the next as its passage."""
    return np.concatenate(model.score(texts, [[text] for text in [*texts[1:], texts[0]]]))


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)


def _stored(base: Path) -> torch.dtype:
    """The precision that most of a folder's weights are stored in."""
    sizes: dict[str, int] = {}
    for path in base.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in list(file.keys()):
                part = file.get_slice(name)
                sizes[part.get_dtype()] = sizes.get(part.get_dtype(), 0) + int(np.prod(part.get_shape()))
    most = max(sizes, key=lambda name: sizes[name], default="F32")
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(most, torch.float32)


def _same_vocabulary(base: Path, target: Path) -> None:
    before, after = (json.loads((folder / "config.json").read_text()).get("vocab_size") for folder in (base, target))
    if before != after:
        raise ModelError(f"merge: the base has {before} tokens, merged it has {after}; expected the same; train anew")


def _sentence_transformers(contract: Contract, dim: int, target: Path) -> None:
    """The files that `SentenceTransformer(folder)` reads."""
    layers = [("Transformer", ""), ("Pooling", "1_Pooling")]
    layers += [("Dense", contract.projection)] * bool(contract.projection)
    layers += [("Normalize", f"{len(layers)}_Normalize")] * contract.normalize
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(layers)
    ]
    prompts = {
        role: template.removesuffix("{text}")
        for role, template in (("query", contract.query_template), ("document", contract.passage_template))
        if template.endswith("{text}")
    }
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last_token": "lasttoken"}
    documents = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": contract.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": prompts, "similarity_fn_name": "cosine"},
        "1_Pooling/config.json": {
            "word_embedding_dimension": dim,
            **{f"pooling_mode_{mode}": ours == contract.pooling for ours, mode in modes.items()},
            "include_prompt": True,
        },
    }
    for name, document in documents.items():
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text(json.dumps(document, indent=2) + "\n")
