"""rerank: score lists of documents with a reranker: mined lists (for distillation) or rankings.

The columns of the input are kept. For each column of document ids, a column of scores is added:

    positives, negatives  ->  teacher_positive_scores, teacher_negative_scores
    documents             ->  teacher_scores

Positives and negatives are also written as FlagEmbedding JSONL, with `pos_scores` and `neg_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.jobs import needs
from ratchet.jobs.inference import InferenceConfig, check_adapter, check_quantization
from ratchet.jobs.model_checks import check_reranker_model
from ratchet.jobs.model_settings import RerankerSettings, predict_prompts, resolve_reranker_config
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Job, Needs, Parents, Resources, Unit


@dataclass(frozen=True)
class Config(InferenceConfig, RerankerSettings):
    depth: Annotated[int, Ge(1), Unit("documents")] | None = None
    """Number of top documents of each ranking to score. None: all. Mined lists are always scored as a whole."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A reranker: a Hugging Face model folder."""
    lists: Path
    """Shards of queries with lists of document ids, as written by `mine` or `evaluate_retrieval`."""
    corpus: Path
    """Shards of documents (columns id and text) that contain all documents of the lists."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""
    teacher_gate: Path | None = None
    """The output `teacher_gate` of `finetune_reranker`. If the gate is closed, the model is not used as a teacher: the
    lists are copied without scores, and finetuning learns from the labels alone. None: no gate."""


def check(config: Config, inputs: Inputs) -> None:
    check_adapter("rerank", inputs.adapter, inputs.model, "reranker")
    if inputs.model is not None:
        check_folder(inputs.model)
        check_reranker_model(inputs.model, resolve_reranker_config(config, inputs.model, inputs.adapter))
    check_quantization("rerank", config.quantization, inputs.model)


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder = needs.find_model("model", inputs, parents)
    if folder is None:
        return None
    reranker_config = resolve_reranker_config(config, folder)
    if reranker_config.kind == "yes_no":
        kind = "causal"
    else:
        kind = "classifier"
    length = needs.bound_length(reranker_config.max_length, parents, "corpus", texts=2)
    return needs.infer(folder, kind, config, inputs, resources, parents, length=length)


JOB = Job(
    "rerank",
    config=Config,
    inputs=Inputs,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    is_worker=lambda config: True,
    check=check,
    needs=estimate_needs,
    predict=predict_prompts,
)
