"""Merging of an adapter into its base, as a model folder that other libraries can load."""

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

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder, projection
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.embedder.sentence_transformers_layout import write_layout
from ratchet.models.loading import silence_transformers
from ratchet.models.model_files import RERANKER_CONFIG_FILE, copy_tokenizer, find_config_folder
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import read_reranker_config


@dataclass(frozen=True)
class MergeCheck:
    """Differences on probe texts. Embedders: 1 - cosine similarity; rerankers: scores in units of their standard
    deviation."""

    drift: float
    """Largest difference between the merged folder, loaded again, and the base with its adapter not merged."""
    change: float
    """Largest difference between the base with and without the adapter."""


def is_reranker(base: Path, adapter: Path) -> bool:
    """Whether base and adapter are a reranker: by the config file of the adapter, else of the base."""
    return (find_config_folder(base, adapter) / RERANKER_CONFIG_FILE).is_file()


def merge(base: Path, adapter: Path, target: Path) -> str:
    """Write base plus adapter into the empty folder `target`: weights in the dtype of the base (merged in float32),
    tokenizer, config file, and for embedders the layout of sentence-transformers.

    Return why the layout is missing, if sentence-transformers would embed differently with it, else an empty string.
    Raises ModelError for an adapter that does not fit.
    """
    kind = _stored(base)
    if is_reranker(base, adapter):
        reranker_config = read_reranker_config(find_config_folder(base, adapter))
        model = reranker.load(
            base, adapter, dtype="float32", device="cpu", reranker_config=reranker_config, prepacked=False
        ).model
        reranker_config.write(target)
    else:
        encoding_config = read_encoding_config(find_config_folder(base, adapter))
        model = encoder.load(
            base, adapter, dtype="float32", device="cpu", encoding_config=encoding_config, prepacked=False
        ).model
        if encoding_config.projection:
            shutil.copytree(projection.find(encoding_config.projection, adapter, base), target / projection.FOLDER)
            encoding_config = replace(encoding_config, projection=projection.FOLDER)
        encoding_config.write(target)
    with silence_transformers():
        model.to(kind).save_pretrained(target)
    copy_tokenizer(base, target)
    _same_vocabulary(base, target)
    return "" if is_reranker(base, adapter) else write_layout(encoding_config, model.config.hidden_size, target)


def check(base: Path, adapter: Path, merged: Path, texts: Sequence[str]) -> MergeCheck:
    """Compare, in float32, the outputs for `texts` of the base, the base with adapter (not merged) and the merged
    folder."""
    if len(texts) < 2:
        raise ModelError(f"merge: {len(texts)} probe texts; expected 2 or more; give some of the corpus")
    if is_reranker(base, adapter):
        reranker_config = read_reranker_config(merged)
        plain = (
            None
            if not reranker.can_score(base)
            else _scores(reranker.load(base, **CPU, reranker_config=reranker_config), texts)
        )
        beside = reranker.load(base, **CPU, reranker_config=reranker_config, training=True)
        beside.model = lora.load(beside.model, adapter)
        expected, found = _scores(beside, texts), _scores(reranker.load(merged, **CPU), texts)
        spread = float(expected.std()) + 1e-6
        change = np.inf if plain is None else float(np.abs(expected - plain).max()) / spread
        return MergeCheck(float(np.abs(expected - found).max()) / spread, change)
    encoding_config = read_encoding_config(merged)
    with_adapter = encoder.load(base, **CPU, encoding_config=encoding_config, training=True, config_folder=merged)
    with_adapter.model = lora.load(with_adapter.model, adapter)
    vectors = [
        _unit(one.encode(texts, "passage"))
        for one in (
            encoder.load(base, **CPU, encoding_config=encoding_config, config_folder=merged),
            with_adapter,
            encoder.load(merged, **CPU),
        )
    ]
    plain_ND, expected_ND, found_ND = vectors
    return MergeCheck(
        float((1 - (expected_ND * found_ND).sum(1)).max()), float((1 - (expected_ND * plain_ND).sum(1)).max())
    )


CPU: dict[str, Any] = {"dtype": "float32", "device": "cpu"}


def _scores(model: reranker.Reranker, texts: Sequence[str]) -> np.ndarray:
    """Score each text as a query with the next text as its passage."""
    return np.concatenate(model.score(texts, [[text] for text in [*texts[1:], texts[0]]]))


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)


def _stored(base: Path) -> torch.dtype:
    """The dtype in which most of a folder's weights are stored."""
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
