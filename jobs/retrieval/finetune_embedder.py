"""finetune_embedder: finetune an embedder (LoRA or all weights) with in-batch and mined negatives."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ratchet.errors import DataError, InputError
from ratchet.jobs import needs, planned_rows
from ratchet.jobs.model_checks import read_size
from ratchet.jobs.prompt_settings import EncodingSettings, describe_prompts, list_examples
from ratchet.jobs.training import config as training
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_kind import read_object
from ratchet.models.pass_size import CPU_GRAPH
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Needs,
    NonNegativeInt,
    Parents,
    PositiveFloat,
    PositiveInt,
    Result,
    Unit,
)


@dataclass(frozen=True)
class Config(EncodingSettings, training.RetrievalFinetuneConfig):
    batch_size: Annotated[int, Ge(2), Unit("queries")] = 64
    """Maximum number of queries per training step, over all workers. All batches of an epoch are of similar size."""
    temperature: PositiveFloat = 0.02
    """Temperature of the softmax over the similarities (1 / `scale` of sentence-transformers)."""
    matryoshka_dims: tuple[PositiveInt, ...] = ()
    """Numbers of leading dimensions to train as embeddings too, such as 64,128. The loss is the mean over these and the
    whole vectors (Kusupati et al. 2022, "Matryoshka representation learning")."""
    in_batch_negatives: bool = True
    """Also use the passages of all other queries of the batch, on all workers, as negatives. Labelled positives of the
    query, suspected false negatives (see the margins of `mine`), and passages with the text of its positive or of the
    query are masked."""
    batch_by: Literal["random", "source"] = "random"
    """`source`: all queries of a batch are from one data set, so that in-batch negatives are too. Each data set has
    batches in proportion to its queries, in random order. `random`: batches mix the data sets."""
    source_weights: tuple[str, ...] = ()
    """With batch_by=source, how many times per epoch the queries of a data set are used, such as wiki=2,web=0.5 (of a
    data set without the reading option `name`: its number, from 0). Data sets that are not named: once."""
    eval_pool: Annotated[PositiveInt, Unit("documents")] | None = 1024
    """Number of documents that `valid` is ranked against during training, if the corpus has more: all positives, top
    documents of `ranking`, and random ones. Metrics over this pool are higher. None: the whole corpus."""
    folds: Annotated[int, Ge(2), Unit("folds")] | None = None
    """Number of folds of a cross-validation of the training queries, which decides instead of `valid`; the rankings of
    the folds are written to `ranking/`. The model is then trained on all. None: four folds decide where `valid` has
    fewer than 20 groups of queries."""
    num_examples: NonNegativeInt = 0
    """Maximum number of few-shot examples before a query in training. Each query gets a random number of them, from 0
    to this maximum, which are sampled from other training queries anew in each epoch. They take at most half of
    max_length; those that would take more are left out."""

    def parse_weights(self) -> dict[str, float]:
        """Return `source_weights` as data set -> weight. Raises InputError for other forms."""
        weights = {}
        for given in self.source_weights:
            name, _, weight = given.rpartition("=")
            if not name or not re.fullmatch(r"\d*\.?\d+", weight) or float(weight) == 0:
                raise InputError(
                    f"finetune_embedder.source_weights: {given} given; expected the name of a data set and a positive"
                    " number, such as wiki=2; correct it"
                )
            weights[name] = float(weight)
        return weights


@dataclass(frozen=True)
class Inputs(training.RetrievalFinetuneInputs):
    examples: Path | None = None
    """Few-shot examples to save with the model for inference, where all queries get them: JSON Lines with `query` and
    `answer`."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return a note on the prompts, and the architecture. Raises DataError for data without training queries, and
    InputError for inputs that are given without their counterpart."""
    job = "finetune_embedder"
    training.check_config(job, config, inputs, parents)
    has_negatives = config.num_negatives > 0 or config.in_batch_negatives
    distills = config.distillation != "none"
    rules = [
        ("num_negatives", has_negatives, "1 or more where in_batch_negatives is off"),
        ("distillation", has_negatives or not distills, "none where there are no negatives"),
        (
            "source_weights",
            config.batch_by == "source" or not config.source_weights,
            "none with batch_by=random; set batch_by=source",
        ),
    ]
    if config.folds:
        held_out = "valid" in parents or inputs.valid is not None
        given = "current_best" in parents or inputs.current_best is not None
        wanted = "none with valid or a current best; leave it out (folds=1 for the recipe)"
        rules.append(("folds", not held_out and not given, wanted))
        wanted = (
            "none where keep, patience, eval_steps or warmup_steps choose the model; leave it out"
        )
        rules.append(("folds", not training.chooses_model(config), wanted))
        queries = planned_rows.count(parents, "mined", "queries", "train/queries") or config.folds
        rules.append(("folds", config.folds <= queries, f"at most {queries}, the training queries"))
    training.require(job, config, rules)
    config.parse_weights()
    if config.batch_by == "source" and planned_rows.count(parents, "corpus", "sources") == 1:
        raise InputError(
            f"{job}.batch_by: source given, for one data set; expected several; give several paths, or leave it out"
        )
    if inputs.base is not None:
        check_base(job, config, inputs)
    if ("ranking" in parents or inputs.ranking) and not ("valid" in parents or inputs.valid):
        raise InputError(
            "finetune_embedder: ranking given, without valid; expected both or none; give the other"
        )
    if planned_rows.count(parents, "valid", "train/queries") == 0:
        said = "the data has queries for test only; expected some to train on; add train.tsv or --set data=PATH"
        raise DataError(f"finetune_embedder: {said}, or evaluate only: --set iterations=0")
    known = needs.add_architecture(describe_prompts(config, inputs, parents), inputs, parents)
    return training.add_epochs(known, config)


def check_base(job: str, config: Config, inputs: Inputs) -> None:
    """Raise InputError for `matryoshka_dims` that are not ascending, or not less than the base's dimensions, and for
    examples that may leave a query too little room."""
    dims = config.matryoshka_dims
    if dims:
        size = read_size(inputs.base, "hidden_size")
        projection = read_encoding_config(inputs.base).projection
        if projection:
            last = projection.rpartition(",")[2]
            size = read_object(inputs.base / last / "config.json")["out_features"]
        if list(dims) != sorted(set(dims)) or dims[-1] >= size:
            raise InputError(
                f"{job}.matryoshka_dims: {','.join(map(str, dims))} given; expected rising numbers below the {size}"
                " dimensions of the vectors, which are always trained; change them"
            )
    found = training.check_embedder(job, config, inputs, list_examples(config, inputs))
    each = found.example_query_max_length + found.example_answer_max_length
    if config.num_examples and each > found.max_length // 2:
        raise InputError(
            f"{job}.num_examples: {config.num_examples} given, of up to {each} tokens each, with a max_length of"
            f" {found.max_length}, of which examples may take half; raise it, or lower the lengths of examples"
        )


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    config = step.config
    folder = step.folder
    limit = config.max_length or read_encoding_config(folder).max_length
    if config.num_examples or step.inputs.examples:
        length = limit
    else:
        length = step.bound_length(limit, "corpus")
    texts = config.batch_size * (2 + config.num_negatives)
    kept = CPU_GRAPH // (read_size(folder, "num_hidden_layers") * read_size(folder, "hidden_size"))
    tokens = step.graph_tokens(texts, length, on_cpu=kept)
    return step.estimate_training("backbone", length=length, tokens=tokens, vectors=texts)


def list_outputs(config: Config) -> tuple[str, ...]:
    if config.folds:
        return (*training.OUTPUTS, "ranking")
    return training.OUTPUTS


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.evaluation_pool import choose_pool
    from ratchet.data.tables import read_shards, write_table
    from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
    from ratchet.jobs.retrieval.embedder_training import EmbedderTask
    from ratchet.jobs.training.cross_validation import count_folds, cross_validate, rank_folds
    from ratchet.jobs.training.finetuning import run_finetuning
    from ratchet.jobs.training.teacher_gate import drop_refused_teacher

    config = resolve_dtype(context, drop_refused_teacher(config, inputs.mined))
    folds = count_folds(config, inputs)
    corpus: Any = None
    if folds or inputs.valid is not None:
        corpus = read_shards(inputs.corpus, ["id"])

    def choose(held_out: Any, ranked: Any = None) -> Any:
        return choose_pool(held_out, corpus, ranked, config.eval_pool, config.seed)

    pool_rows = None
    if inputs.valid is not None:
        ranked = None
        if inputs.ranking is not None:
            ranked = read_shards(inputs.ranking, ["id", "documents"])
        pool_rows = choose(read_shards(inputs.valid), ranked)
    found = None
    if folds:
        whole = replace(config, eval_fraction=1.0)
        found = cross_validate(context, whole, EmbedderTask, inputs, choose, folds)
    result, _ = run_finetuning(
        context,
        config,
        EmbedderTask,
        inputs,
        pool_rows=pool_rows,
        cross_validated=found.history if found else None,
    )
    if config.folds and found:
        if not result.metrics["changed"]:
            kept = context.out / ("model" if config.method == "full" else "adapter")
            found = replace(found, held_out=[read_shards(inputs.mined)], models=[kept])
        # With several workers, this process has no GPU.
        has_gpu = context.resources.gpus and context.holds_resources
        table = rank_folds(config, inputs, found, "cuda" if has_gpu else "cpu")
        write_table(context.out / "ranking" / "shard-00000.parquet", table)
    return result


JOB = Job(
    "finetune_embedder",
    Config,
    Inputs,
    run,
    check=check,
    needs=estimate_needs,
    divide=training.divide_batches,
    outputs=list_outputs,
    metrics=lambda config: [*training.list_training_metrics(config), "valid/documents"],
)
