"""Merging of an adapter into its base, as a model folder that other libraries can load."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder, projection
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.loading import silence_transformers
from ratchet.models.model_files import find_config_folder, find_weights, read_main_dtype
from ratchet.models.model_kind import describe_kind, read_config
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import read_reranker_config
from ratchet.models.roles import find_usage, read_task


@dataclass(frozen=True)
class MergeCheck:
    """Differences of outputs on probe texts: 1 - cosine similarity, or standard deviations of a reranker's scores."""

    drift: float
    """Largest difference between the merged folder, loaded again, and the base with its adapter not merged."""
    change: float
    """Largest difference between the base with and without the adapter."""


def check_inputs(base: Path, adapter: Path, projection_file: Path | None) -> None:
    """Raise ModelError for an adapter or a projection that does not fit the base, and for an adapter of a causal
    language model. Reads no weights of the base."""
    lora.check_fits(base, adapter)
    _check_kind(base, adapter)
    if projection_file is not None:
        projection.load(projection_file, read_width(base))


def _check_kind(base: Path, adapter: Path) -> None:
    """Raise ModelError for an adapter that makes neither an embedder nor a reranker of the base."""
    usage = find_usage(base, adapter)
    task = read_task(adapter)
    if usage == "decoder" and task == "CAUSAL_LM":
        raise ModelError(
            f"adapter {adapter}: of a causal language model (task_type CAUSAL_LM); expected one of an embedder or a"
            " reranker; export it with its base (ratchet export), or write its encoding_config.json beside it"
        )
    config_folder = find_config_folder(base, adapter)
    if (
        usage == "reranker"
        and task == "SEQ_CLS"
        and read_reranker_config(config_folder).kind == "yes_no"
    ):
        raise ModelError(
            f"adapter {adapter}: of a sequence classifier (task_type SEQ_CLS), and the base {base} is a causal language"
            " model; expected a base that is an encoder; train another adapter"
        )


def read_width(base: Path) -> int:
    """Return the dimensions of a model's hidden states, by the default of its class where config.json has none."""
    width: int = transformers.AutoConfig.from_pretrained(base).get_text_config().hidden_size
    return width


def _read_config(base: Path, adapter: Path, projection_file: Path | None) -> EncodingConfig:
    """Return the encoding config of a merged embedder.

    A projection file comes from the theorem scripts of https://github.com/ajoudaki/CITER. Their encoders have no prompt
    templates, pool decoders at the last token and encoders at the first one, and normalize vectors."""
    if projection_file is None:
        return read_encoding_config(base, adapter)
    pooling: Any
    pooling = "cls" if describe_kind(read_config(base)) == "an encoder" else "last_token"
    return EncodingConfig(pooling, max_length=read_encoding_config(base).max_length)


def merge(base: Path, adapter: Path, target: Path, projection_file: Path | None = None) -> str:
    """Write base plus adapter into the folder `target`: weights in the dtype of the base, tokenizer, config file, and
    for embedders the layout of sentence-transformers. The sums are computed in float32. projection_file: see
    `_read_config`.

    Return an empty string, or why the layout is missing: sentence-transformers would embed differently with it. Raises
    ModelError for an adapter that does not fit."""
    _check_kind(base, adapter)
    options: dict[str, Any] = {"dtype": read_main_dtype(base), "device": "cpu"}
    if find_usage(base, adapter) == "reranker":
        reranker.load(base, adapter, **options).save(base, target)
        return ""
    config = _read_config(base, adapter, projection_file)
    merged = encoder.load(base, adapter, encoding_config=config, **options)
    if projection_file is not None:
        merged.projection = projection.load(projection_file, read_width(base))
    merged.model = _add_unused_layers(merged.model, base)
    return merged.save(base, target)


def _add_unused_layers(model: Any, base: Path) -> Any:
    """Return the model with the layers of its base that an embedder does not use: a decoder's head, or an encoder's
    pooler. A reranker may start from the model."""
    kind: Any = transformers.AutoModel
    if describe_kind(read_config(base)) == "a decoder":
        kind = transformers.AutoModelForCausalLM
    elif not any("pooler" in name for name in find_weights(base)):
        return model
    with silence_transformers():
        whole = kind.from_pretrained(base, dtype=model.dtype)
    whole.base_model.load_state_dict(model.state_dict(), strict=False)
    return whole


def check(base: Path, adapter: Path, merged: Path, texts: Sequence[str]) -> MergeCheck:
    """Compare outputs of the base, the base with the unmerged adapter and the merged folder, in bfloat16 for a bfloat16
    base, else in float32. texts: 2 or more, cut to 256 characters. One model is in memory at a time."""
    if len(texts) < 2:
        raise ModelError(
            f"merge: {len(texts)} probe texts; expected 2 or more; give some of the corpus"
        )
    texts = [text[:256] for text in texts]
    dtype = "float32"
    if read_main_dtype(base) == "bfloat16":
        dtype = "bfloat16"
    reranks = find_usage(base, adapter) == "reranker"
    load: Any = partial(reranker.load if reranks else encoder.load, dtype=dtype, device="cpu")

    def compute(model: Any) -> np.ndarray:
        if reranks:  # each text as a query, with the next text as its passage
            return np.concatenate(model.score(texts, [[text] for text in [*texts[1:], texts[0]]]))
        vectors_ND = model.encode(texts, "passage")
        return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)

    found = compute(load(merged))
    if reranks:
        one = load(base, reranker_config=read_reranker_config(merged), training=True)
    else:
        one = load(
            base, encoding_config=read_encoding_config(merged), config_folder=merged, training=True
        )
    has_outputs = not reranks or reranker.can_score(base)
    if has_outputs:
        plain = compute(one)
    one.model = lora.load(one.model, adapter)
    expected = compute(one)

    def differ(other: np.ndarray) -> float:
        if reranks:
            return float(np.abs(expected - other).max()) / (float(expected.std()) + 1e-6)
        return float((1 - (expected * other).sum(1)).max())

    change = np.inf
    if has_outputs:
        change = differ(plain)
    return MergeCheck(differ(found), change)
