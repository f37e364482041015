"""finetune_embedder: train a LoRA adapter for an embedder with in-batch and mined negatives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.training.config import (
    WARM_START,
    RetrievalFinetuneConfig,
    check_config,
    check_retrieval_metric,
    count_feedable_workers,
    list_training_metrics,
    require,
)
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import find_config_folder
from ratchet.models.model_kind import check_embedder, read_config
from ratchet.orchestrator.job_interface import Job, Needs, Parents, Resources, Unit

CPU_GRAPH = 2**15 * 6 * 384
"""Tokens of a training step on CPUs whose activations are all kept, times layers and their dimensions: about 8 GB."""
TEMPLATE_TOKENS = 32
"""Estimated tokens of a template and a task. The exact number is checked when the model is loaded."""


@dataclass(frozen=True)
class Config(RetrievalFinetuneConfig):
    batch_size: Annotated[int, Ge(2), Unit("queries")] = 64
    """Largest number of queries per training step, over all workers. The steps of an epoch are of nearly equal size."""
    temperature: Annotated[float, Gt(0)] = 0.02
    """Softmax temperature of the similarities."""
    in_batch_negatives: bool = True
    """Use the passages of all other queries of the batch, on all workers, as negatives too."""
    false_negative_mask: bool = True
    """Mask negatives that are known positives of the query, or have the text of its positive or of the query."""
    task: str = ""
    """One sentence that says what to search for. Replaces `{task}`, which a template must have. Empty: that of the
    encoding config."""
    query_template: str = ""
    """Template of queries, with `{text}` and optionally `{task}`. Empty: that of the encoding config; with examples,
    that of bge-en-icl."""
    query_max_length: Annotated[int, Ge(1), Unit("tokens")] | None = None
    """Longer queries are truncated, before the template is applied. None: the limit of the encoding config."""
    num_examples: Annotated[int, Ge(0)] = 0
    """Largest number of few-shot examples before a query in training. Each query gets 0 to so many, sampled from other
    training queries anew in each epoch."""
    num_fixed_examples: Annotated[int, Ge(0)] = 0
    """Few-shot examples that are saved with the adapter for inference: the same before every query."""
    example_max_length: Annotated[int, Ge(1), Unit("tokens")] = 128
    """Longer queries and answers of few-shot examples are truncated."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    mined: Path
    """Queries with positives and negatives, as written by `mine`; for distillation with the scores of `rerank`."""
    corpus: Path
    """Shards of documents with the texts of these ids."""
    valid: Path
    """Held-out queries with positives."""
    current_best: Path | None = None
    """The current best adapter, which is kept if training does not improve on it. None: the base."""


def check(config: Config, inputs: Inputs) -> None:
    job = "finetune_embedder"
    check_config(job, config, inputs.base)
    check_retrieval_metric(job, config)
    has_negatives = config.num_negatives > 0 or config.in_batch_negatives
    require(
        job,
        config,
        [
            ("num_negatives", has_negatives, "1 or more where in_batch_negatives is off"),
            ("distillation", has_negatives or config.distillation == "none", "none where there are no negatives"),
            (
                "num_fixed_examples",
                config.num_fixed_examples <= config.num_examples,
                "0 up to num_examples, so that training uses as many",
            ),
        ],
    )
    if inputs.base is None:
        return
    check_embedder(inputs.base)
    _check_task(job, config, inputs)
    length = read_encoding_config(inputs.base).with_limits(config.max_length).max_length
    examples = config.num_examples * (2 * config.example_max_length + TEMPLATE_TOKENS)
    left = length - examples - TEMPLATE_TOKENS
    if config.num_examples and left < (config.query_max_length or 1):
        raise InputError(
            f"{job}.num_examples: {config.num_examples} given, of up to {2 * config.example_max_length} tokens"
            f" each, with a max_length of {length}; that leaves {max(0, left)} for the query, expected"
            f" {config.query_max_length or 'some'}; raise max_length, or lower num_examples or example_max_length"
        )


def _check_task(job: str, config: Config, inputs: Inputs) -> None:
    """Raise InputError for a task that no template uses. Templates of an adapter are read once it exists."""
    adapter = inputs.current_best if config.start_from == "current_best" else None
    if not config.task or (config.num_examples and not config.query_template):
        return  # the template of bge-en-icl has {task}
    if config.start_from == "current_best" and adapter is None:
        return
    given = read_encoding_config(find_config_folder(inputs.base, adapter))
    if "{task}" not in (config.query_template or given.query_template) + given.passage_template:
        raise InputError(
            f"{job}.task: {config.task!r} given, but no template has {{task}}; expected query_template with it; set"
            " query_template, such as 'Instruct: {task}\\nQuery: {text}', or leave task empty"
        )


def estimate_needs(config: Config, inputs: Inputs, resources: Resources, parents: Parents) -> Needs | None:
    folder = needs.find_model("base", inputs, parents)
    if folder is None:
        return None
    limit = read_encoding_config(folder).with_limits(config.max_length).max_length
    length = limit if config.num_examples else needs.bound_length(limit, parents, "corpus")
    texts = config.batch_size * (2 + config.num_negatives)
    shape = read_config(folder)
    kept = CPU_GRAPH // (shape.get("num_hidden_layers", 6) * shape.get("hidden_size", 384))
    tokens = needs.graph_tokens(config, resources, texts, length, on_cpu=kept)
    queries = needs.count(parents, "mined", "queries", "train/queries")
    total = None if queries is None else config.epochs * queries * (2 + config.num_negatives) * length
    passes = 1 if texts * length <= tokens * (resources.workers or 1) else 2
    options: dict[str, Any] = {"tokens": tokens, "passes": passes, "total": total, "vectors": texts}
    return needs.train(folder, "backbone", config, resources, length=length, **options)


JOB = Job(
    "finetune_embedder",
    version=1,
    config=Config,
    inputs=Inputs,
    run="ratchet.jobs.retrieval.implementation.finetune_embedder:run",
    check=check,
    needs=estimate_needs,
    warm_start=WARM_START,
    max_workers=lambda config: count_feedable_workers(config.batch_size),
    outputs=("adapter", "selection.json"),
    metrics=list_training_metrics,
)
