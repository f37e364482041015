"""Comparison of a model folder's results in other libraries with Ratchet's.

Each function returns library -> the largest difference on `PROBES`. A library that is not installed is left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import PeftModel

from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import Role
from ratchet.models.embedder.sentence_transformers_layout import ROLES
from ratchet.models.loading import open_model, silence_transformers
from ratchet.models.reranker import reranker

PROBES = (
    ("What is 2 + 2?", "The sum of two and two is four."),
    ("capital of France", "Paris is the capital and largest city of France, on the river Seine."),
    ("naïve café, x² = 4", "Die Lösungen der Gleichung sind x = 2 und x = -2."),
    ("a", "b"),
    ("Why does 3/4 + 1/2 not equal 4/6?", "Adds numerators and denominators " * 8),
)
"""Texts for the comparison: (query, passage)."""
QUERIES, PASSAGES = (list(texts) for texts in zip(*PROBES, strict=True))
TEXTS: dict[Role, list[str]] = {"query": QUERIES, "passage": PASSAGES}


def compare_embedder(folder: Path, dtype: str, adapter: Path | None = None) -> dict[str, float]:
    """Return library -> largest 1 - cosine similarity between its embeddings and Ratchet's."""
    loaded = encoder.load(folder, adapter, dtype=dtype, device="cpu")
    ours = {role: loaded.encode(texts, role) for role, texts in TEXTS.items()}
    config = loaded.encoding_config
    del loaded
    libraries: dict[str, Callable[[], Mapping[Role, np.ndarray]]] = {}
    prompts = {role: config.format_prompt(role) for role in TEXTS}

    def use_sentence_transformers() -> Mapping[Role, np.ndarray]:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(
            str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
        )
        found = {}
        for role, texts in TEXTS.items():
            found[role] = model.encode(texts, prompt_name=ROLES[role])
        return found

    def use_transformers() -> Mapping[Role, np.ndarray]:
        model = open_plain(transformers.AutoModel, folder, dtype, adapter)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        found = {}
        for role, texts in TEXTS.items():
            rows = []
            for text in texts:
                rows.append(tokenizer(prompts[role] + text, return_tensors="pt"))
            pooled = []
            for row in rows:
                pooled.append(
                    encoder.pool(
                        model(**row).last_hidden_state, row["attention_mask"], config.pooling
                    )
                )
            found[role] = torch.cat(pooled).numpy()
        return found

    def use_flag_embedding() -> Mapping[Role, np.ndarray]:
        from FlagEmbedding import FlagModel

        options = {}
        for role in TEXTS:
            options[f"{role}_instruction_format"] = "{}{}"
        options |= {f"{role}_instruction_for_retrieval": prompt for role, prompt in prompts.items()}
        given: dict[str, Any] = {
            "pooling_method": config.pooling,
            "normalize_embeddings": config.normalize,
        }
        model = FlagModel(str(folder), **given, **options, use_fp16=False, devices="cpu")
        return {"query": model.encode_queries(QUERIES), "passage": model.encode_corpus(PASSAGES)}

    if (folder / "modules.json").is_file() and adapter is None:
        libraries["sentence_transformers"] = use_sentence_transformers
    plain_tokens = adapter is not None or (folder / "modules.json").is_file()
    if not config.projection and plain_tokens:  # then the tokenizer alone gives Ratchet's tokens
        libraries["PEFT" if adapter else "transformers"] = use_transformers
        if adapter is None and dtype == "float32" and config.pooling != "last_token":
            libraries["FlagEmbedding"] = use_flag_embedding
    found = _run(libraries)
    made: dict[str, float] = {}
    for name, own in found.items():
        made[name] = max(_cosine_distance(own[role], ours[role]) for role in TEXTS)
    return made


def compare_reranker(folder: Path, dtype: str, adapter: Path | None = None) -> dict[str, float]:
    """Return library -> largest difference of scores, relative to the standard deviation of Ratchet's scores."""
    loaded = reranker.load(folder, adapter, dtype=dtype, device="cpu")
    lists = [[text] for text in PASSAGES]
    ours = np.concatenate(loaded.score(QUERIES, lists))
    rows = loaded.tokenize(QUERIES, lists)
    config = loaded.reranker_config
    answers = loaded.tokens.answers
    del loaded
    libraries: dict[str, Callable[[], np.ndarray]] = {}

    def use_sentence_transformers() -> np.ndarray:
        from sentence_transformers import CrossEncoder

        model = CrossEncoder(
            str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
        )
        return np.asarray(model.predict(list(PROBES), activation_fn=torch.nn.Identity())).reshape(
            -1
        )

    def use_transformers() -> np.ndarray:
        if config.kind == "yes_no":
            model = open_plain(transformers.AutoModelForCausalLM, folder, dtype, adapter)
            head = model.get_output_embeddings()
            states = list[torch.Tensor]()
            head.register_forward_pre_hook(lambda _, given: states.append(given[0][0, -1].float()))
            for row in rows:
                model(input_ids=torch.tensor([row.ids]))
            if head.bias is None:
                bias = None
            else:
                bias = head.bias[answers].float()
            # In bfloat16 the head would round logits of 20 to multiples of 0.125.
            logits = torch.nn.functional.linear(
                torch.stack(states), head.weight[answers].float(), bias
            )
            return (logits[:, 0] - (logits[:, 1] if len(answers) > 1 else 0)).numpy()
        model = open_plain(transformers.AutoModelForSequenceClassification, folder, dtype, adapter)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        given = []
        for query, passage in PROBES:
            given.append(tokenizer(query, passage, return_tensors="pt"))
        return torch.cat([model(**one).logits[:, 0].float() for one in given]).numpy()

    if config.kind == "cross_encoder" and adapter is None:
        libraries["sentence_transformers"] = use_sentence_transformers
    if (
        config.kind == "yes_no" or not adapter
    ):  # without the adapter's head, transformers would create a random one
        libraries["PEFT" if adapter else "transformers"] = use_transformers
    found: dict[str, float] = {}
    for name, own in _run(libraries).items():
        found[name] = float(np.abs(own - ours).max() / (ours.std() + 1e-6))
    return found


def compare_decoder(folder: Path, dtype: str, base: Path, adapter: Path | None) -> dict[str, float]:
    """Return library -> largest difference of the logits after the last token, relative to their standard deviation.
    Compared are `folder` (a merged model; or `base`, into which `adapter` is then merged here) and, loaded by the other
    library, `base` with the adapter beside it, if there is one."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind = transformers.AutoModelForCausalLM
    given = []
    for query, passage in PROBES:
        given.append(tokenizer(f"{query} {passage}", return_tensors="pt").input_ids)

    @torch.no_grad()
    def compute(model: Any) -> np.ndarray:
        return torch.cat([model(input_ids=ids).logits[:, -1].float() for ids in given]).numpy()

    ours = compute(
        open_model(kind, folder, adapter if folder == base else None, dtype=dtype, device="cpu")[
            0
        ].eval()
    )
    theirs = compute(open_plain(kind, base, dtype, adapter))
    return {
        "PEFT" if adapter else "transformers": float(
            np.abs(theirs - ours).max() / (theirs.std() + 1e-6)
        )
    }


def open_plain(kind: Any, folder: Path, dtype: str, adapter: Path | None = None) -> Any:
    """Load a model with transformers only, and an adapter, not merged, with PEFT."""
    with silence_transformers():
        model = kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    if adapter is None:
        return model
    return PeftModel.from_pretrained(model, str(adapter)).eval()


@torch.no_grad()
def _run(libraries: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return library -> what it computes, for the installed ones."""
    modules = {"PEFT": "peft"}
    found: dict[str, Any] = {}
    for name, use in libraries.items():
        if importlib.util.find_spec(modules.get(name, name)):
            found[name] = use()
    return found


def _cosine_distance(one_ND: np.ndarray, other_ND: np.ndarray) -> float:
    one_ND, other_ND = (np.asarray(own, np.float64) for own in (one_ND, other_ND))
    lengths_N = np.linalg.norm(one_ND, axis=1) * np.linalg.norm(other_ND, axis=1)
    return float(np.max(1 - (one_ND * other_ND).sum(1) / lengths_N))
